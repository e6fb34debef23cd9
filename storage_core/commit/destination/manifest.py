"""Read the live files of a destination, also while jobs replace them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from lockgate.storage_core.commit.destination.as_of import AsOf, changes_between, manifest_as_of
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store

T = TypeVar("T")

TRIES: Final = 10
"""Each retry means that a job was published during the previous try."""


def read_manifest(
    destination: str, *, as_of: AsOf | None = None, settings: Settings | None = None
) -> Manifest:
    """Return the live files of a destination: whole jobs only, even while a job commits.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        as_of: Turn of the log, a time or a tag, to read as of; the last turn by default. A time is a
            `datetime` or text in ISO 8601, in UTC if it has no zone, and means the last turn decided by then.
        settings: Settings; read from the environment by default.

    Raises:
        InvalidInputError: The destination or `as_of` is invalid, or files of that turn are gone, because a
            later `replace` removed them; the message names the first turn that can be read.
        LockgateError: The store refused or failed.
    """
    settings = settings or load_settings()
    return manifest_as_of(DestinationLog(open_store(destination, settings), settings.near_calls), as_of)


def read_changes(
    destination: str, after: AsOf, until: AsOf | None = None, *, settings: Settings | None = None
) -> Manifest:
    """Return the files with the rows that were added after a turn, each at `Manifest.path`, in no order.

    A program that keeps the `turn` of what it has read last reads each row once. Compactions, which move rows
    into other files, are left out.

        found = read_changes("lake/sales", after=41)
        tables = [pq.read_table(f"lake/sales/{found.path(key)}") for key in found.files]

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        after: Turn, time or tag that has been read; 0 for all.
        until: The last turn to read, in the same forms; by default the last one.
        settings: Settings; read from the environment by default.

    Raises:
        InvalidInputError: The destination or a turn is invalid; a job has removed rows in between; or files
            are gone that a compaction has merged: keep them with `lockgate keep`.
        LockgateError: The store refused or failed.
    """
    settings = settings or load_settings()
    log = DestinationLog(open_store(destination, settings), settings.near_calls)
    return changes_between(log, after, until)


def read_live(
    destination: str,
    read: Callable[[Manifest], T],
    *,
    missing: tuple[type[Exception], ...] = (OSError, ObjectNotFoundError),
    settings: Settings | None = None,
) -> T:
    """Read live files; start over with the newest manifest if one of them was deleted meanwhile.

        def read_all(manifest: Manifest) -> pa.Table:
            return pa.concat_tables(pq.read_table(f"/lake/sales/{key}") for key in manifest.files)

        table = read_live("/lake/sales", read_all)

    The result belongs to one turn: whole jobs only.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        read: Function that reads the files of one manifest. It must have no side effects, as it may be called
            again.
        missing: Exceptions that `read` raises for a missing file; DuckDB's is `duckdb.IOException`.
        settings: Settings; read from the environment by default.

    Raises:
        InvalidInputError: The destination is invalid.
        LockgateError: The store refused or failed.
        Exception: Exception of `read`, if no job was published since its manifest was read, or at the tenth
            try.
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
