"""How many rows a staged file holds, where the file itself says so cheaply."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

from lockgate.storage_core.errors import MalformedRecordError

BLOCK_BYTES: Final = 1024 * 1024


def count_rows(path: Path) -> int | None:
    """Return the rows of a file, by its ending; None where that would be a guess.

    Parquet and ORC state them in their footers; a JSON-lines file (`.json`, `.jsonl`, `.ndjson`, also with
    `.gz`) has one a line. A CSV file says neither whether its first line is a header nor whether a line
    break within quotes ends a row, so its rows are not known.

    Raises:
        MalformedRecordError: The file is not what its ending says.
    """
    endings = [ending.lower() for ending in path.suffixes]
    try:
        if endings[-1:] == [".parquet"]:
            return _parquet_rows(path)
        if endings[-1:] == [".orc"]:
            return _orc_rows(path)
        if _is_json(endings[-1:]):
            with path.open("rb") as file:
                return _json_rows(file)
        if endings[-1:] == [".gz"] and _is_json(endings[-2:-1]):
            with gzip.open(path) as file:
                return _json_rows(cast("BinaryIO", file))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the content's
        raise MalformedRecordError(
            f"staged file {path}: is not a whole {endings[-1]} file ({error}); nothing of it was uploaded; "
            "stage the data again"
        ) from error
    return None


def _is_json(ending: list[str]) -> bool:
    return ending in ([".json"], [".jsonl"], [".ndjson"])


def _parquet_rows(path: Path) -> int:
    from pyarrow import parquet  # noqa: PLC0415 - half a second, and only where there are such files

    return int(parquet.read_metadata(path).num_rows)


def _orc_rows(path: Path) -> int:
    from pyarrow import orc  # noqa: PLC0415 - as above

    return int(orc.ORCFile(path).nrows)


def _json_rows(file: BinaryIO) -> int | None:
    """Count the lines; None if the first is no JSON object by itself, as where the file is one document."""
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
