"""Read the versions of a Delta log, and write its checkpoints, without which readers take longer.

Source: Delta Transaction Log Protocol, "Checkpoints" and "Action Reconciliation".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import islice
from typing import Any, Final

import msgspec

from lockgate.storage_core.commit.records.create_if_absent import create
from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import AlreadyExistsError, MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.stores import Store

FOLDER: Final = "_delta_log/"
LAST_CHECKPOINT: Final = f"{FOLDER}_last_checkpoint"
READS_AT_ONCE: Final = 8
ROWS: Final = 10_000
"""Rows of a checkpoint that are in memory at a time."""
Action = dict[str, Any]

NUMBERED: Final = re.compile(rf"{FOLDER}([0-9]{{20}})\.")
"""Keys of versions, and of their checkpoints and checksums."""
_VERSION: Final = re.compile(rf"{FOLDER}([0-9]{{20}})\.json")
_SINGLE: Final = frozenset({"protocol", "metaData", "txn"})
"""Kinds of actions of which the newest one counts."""


def version_key(version: int) -> str:
    """Return the key of a version."""
    return f"{FOLDER}{version:020d}.json"


def checkpoint_key(version: int) -> str:
    """Return the key of the checkpoint of a version."""
    return f"{FOLDER}{version:020d}.checkpoint.parquet"


def newest_checkpoint(store: Store) -> int:
    """Return the version of the newest checkpoint by its hint; -1 if there is none, or it cannot be read."""
    try:
        return int(decode_json(store.get(LAST_CHECKPOINT), dict[str, Any])["version"])
    except (ObjectNotFoundError, msgspec.DecodeError, KeyError, ValueError, TypeError):
        return -1


def versions_from(store: Store, version: int) -> Iterator[int]:
    """Yield the versions from this one on, by a listing."""
    # The key without its end is before the version's own.
    for page in store.pages(FOLDER, after=f"{FOLDER}{version:020d}" if version > 0 else ""):
        for info in page:
            if found := _VERSION.fullmatch(info.key):
                yield int(found[1])


def read_version(store: Store, version: int) -> list[Action]:
    """Return the actions of a version.

    Raises:
        MalformedRecordError: It is not JSON.
    """
    key = version_key(version)
    try:
        return [decode_json(line, Action) for line in store.get(key).splitlines() if line]
    except msgspec.DecodeError as error:
        raise MalformedRecordError(f"{store.url}/{key}: {error}") from None


def reconciled(store: Store, version: int, *, first: int) -> Iterator[Action]:
    """Yield the actions that the table after a version consists of, those of one kind or file once.

    Of the files in memory are those that versions since the newest checkpoint have added or removed.

    Args:
        store: Store of the destination.
        version: The version.
        first: First version of the table.

    Raises:
        ObjectNotFoundError: A version is gone.
        MalformedRecordError: A version or a checkpoint cannot be read.
    """
    checkpoint = newest_checkpoint(store)
    is_usable = first <= checkpoint <= version
    newest: dict[str, Any] = {}
    files: dict[str, Any] = {}  # None if removed
    rest = range(checkpoint + 1 if is_usable else first, version + 1)
    for actions in in_order(partial(read_version, store), rest, READS_AT_ONCE):
        for action in actions:
            ((kind, value),) = action.items()
            if kind in _SINGLE:
                newest[kind] = value
            elif kind in {"add", "remove"}:
                files[value["path"]] = value if kind == "add" else None
    for action in _read_checkpoint(store, checkpoint) if is_usable else ():
        ((kind, value),) = action.items()
        if kind != "add":
            newest.setdefault(kind, value)
        elif value["path"] not in files:
            yield action
    yield from ({kind: value} for kind, value in newest.items())
    yield from ({"add": value} for value in files.values() if value is not None)


def _read_checkpoint(store: Store, version: int) -> Iterator[Action]:
    from pyarrow import ArrowException, parquet  # noqa: PLC0415 - slow to import

    key = checkpoint_key(version)
    try:
        for batch in parquet.ParquetFile(BytesIO(store.get(key))).iter_batches(ROWS):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                yield from ({kind: value} for kind, value in row.items() if value is not None)
    except ArrowException as error:
        raise MalformedRecordError(f"{store.url}/{key}: {error}") from None


def write_checkpoint(store: Store, version: int, actions: Iterable[Action]) -> None:
    """Write the checkpoint of a version, unless it is there, and the hint to it.

    Args:
        store: Store of the destination.
        version: The version.
        actions: Those of `reconciled`.
    """
    import pyarrow as pa  # noqa: PLC0415 - slow to import
    from pyarrow import parquet  # noqa: PLC0415

    texts, options = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())
    words, numbers = pa.string(), pa.int64()
    schema = pa.schema(
        {
            "txn": pa.struct({"appId": words, "version": numbers, "lastUpdated": numbers}),
            "add": pa.struct(
                {
                    "path": words,
                    "partitionValues": options,
                    "size": numbers,
                    "modificationTime": numbers,
                    "dataChange": pa.bool_(),
                    "stats": words,
                }
            ),
            "remove": pa.struct({"path": words, "deletionTimestamp": numbers, "dataChange": pa.bool_()}),
            "metaData": pa.struct(
                {
                    "id": words,
                    "format": pa.struct({"provider": words, "options": options}),
                    "schemaString": words,
                    "partitionColumns": texts,
                    "configuration": options,
                    "createdTime": numbers,
                }
            ),
            "protocol": pa.struct(
                {
                    "minReaderVersion": pa.int32(),
                    "minWriterVersion": pa.int32(),
                    "readerFeatures": texts,
                    "writerFeatures": texts,
                }
            ),
        }
    )
    file, size, rest = BytesIO(), 0, iter(actions)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while rows := list(islice(rest, ROWS)):
            for row in rows:
                if "add" in row:
                    row["add"] = {**row["add"], "dataChange": False}
            writer.write_table(pa.Table.from_pylist(rows, schema))
            size += len(rows)
    with suppress(AlreadyExistsError):  # another process has written the same state
        create(store, checkpoint_key(version), file.getvalue())
    if newest_checkpoint(store) < version:
        store.put(LAST_CHECKPOINT, msgspec.json.encode({"version": version, "size": size}))
