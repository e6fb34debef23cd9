"""Count the rows of a staged file, if its format allows it cheaply."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

from lockgate.storage_core.errors import MalformedRecordError

BLOCK_BYTES: Final = 1024 * 1024


def count_rows(path: Path) -> int | None:
    """Return the number of rows of a file, by the format of its suffix; None if it is not known.

    Parquet and ORC have it in their footers; a JSON-lines file (`.json`, `.jsonl`, `.ndjson`, also with
    `.gz`) has one row in each line. The rows of a CSV file are not known: its first line may be a header, and
    a line break within quotes may not end a row.

    Raises:
        MalformedRecordError: The file does not have the format of its suffix.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    try:
        match suffixes:
            case [*_, ".parquet"]:
                return _parquet_rows(path)
            case [*_, ".orc"]:
                return _orc_rows(path)
            case [*_, ".json" | ".jsonl" | ".ndjson"]:
                with path.open("rb") as file:
                    return _json_rows(file)
            case [*_, ".json" | ".jsonl" | ".ndjson", ".gz"]:
                with gzip.open(path) as packed:
                    return _json_rows(cast("BinaryIO", packed))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk failed; the content may be valid
        raise MalformedRecordError(
            f"staged file {path} is not a complete {suffixes[-1]} file ({error}); nothing of it was "
            "uploaded; stage the data again"
        ) from error
    return None


def _parquet_rows(path: Path) -> int:
    from pyarrow import parquet  # noqa: PLC0415 - half a second

    return int(parquet.read_metadata(path).num_rows)


def _orc_rows(path: Path) -> int:
    from pyarrow import orc  # noqa: PLC0415 - as above

    return int(orc.ORCFile(path).nrows)


def _json_rows(file: BinaryIO) -> int | None:
    """Count the lines; None if the first is not a JSON object, as in a file that is one document."""
    first = file.readline(BLOCK_BYTES)
    if not first:
        return 0
    try:
        if not isinstance(json.loads(first), dict):
            return None
    except json.JSONDecodeError:
        return None
    rows, last = 1, b"\n"
    while block := file.read(BLOCK_BYTES):
        rows += block.count(b"\n")
        last = block[-1:]
    return rows + (last != b"\n")
