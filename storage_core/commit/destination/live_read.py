"""Reading what is live while jobs replace it: a file may go between the manifest and its opening."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store

T = TypeVar("T")

TRIES: Final = 10
"""Each after the first means that a job was published while the one before it read."""


def read_live(
    destination: str,
    read: Callable[[Manifest], T],
    *,
    missing: tuple[type[Exception], ...] = (OSError, ObjectNotFoundError),
    settings: Settings | None = None,
) -> T:
    """Read live files, and begin anew with the newest manifest where one of them went away meanwhile.

        def read_all(manifest: Manifest) -> pa.Table:
            return pa.concat_tables(pq.read_table(f"/lake/sales/{key}") for key in manifest.files)

        table = read_live("/lake/sales", read_all)

    What it returns is of one turn: whole jobs only. Jobs that keep replaced files for longer than a reading
    takes (`replaced_retention_s`) make it begin once only.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        read: Reads all that it wants of one manifest, and has no other effect: it may be called again.
        missing: Errors by which it says that a file is not there; DuckDB's is `duckdb.IOException`.
        settings: From the environment by default.

    Raises:
        InvalidInputError: The destination cannot be.
        LockgateError: The store said no.
        Exception: What `read` raised, where no job was published since its manifest was read, or the tenth
            time.
    """
    log = DestinationLog(open_store(destination, settings))
    manifest = log.manifest()
    for _ in range(TRIES - 1):
        try:
            return read(manifest)
        except missing:
            newer = log.manifest()
            if newer.turn == manifest.turn:
                raise
            manifest = newer
    return read(manifest)
