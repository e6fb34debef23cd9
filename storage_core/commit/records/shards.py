"""Store long lists as shards: records of at most 1,000 entries, each named by its digest.

A digest as the name makes writes idempotent and reads verifiable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, R, Record, decode, digest, encode
from lockgate.storage_core.commit.records.create_if_absent import create
from lockgate.storage_core.commit.records.job_record import Count
from lockgate.storage_core.errors import AlreadyExistsError, MalformedRecordError, OutcomeUnknownError
from lockgate.storage_core.stores import Store

SHARD_ENTRIES: Final = 1000


def write_shard(store: Store, key_of: Callable[[str], str], record: Record) -> str:
    """Write a record under its digest, unless it exists, and return the digest."""
    data = encode(record)
    name = digest(data)
    try:
        create(store, key_of(name), data)
    except AlreadyExistsError:
        pass  # equal digest, equal bytes
    except OutcomeUnknownError:
        store.put(key_of(name), data)
    return name


def read_shard(store: Store, kind: type[R], key_of: Callable[[str], str], name: str) -> R:
    """Read a shard and verify its digest.

    Raises:
        MalformedRecordError: The content has another digest, or is not such a record.
    """
    key = key_of(name)
    data = store.get(key, length=MAX_RECORD_BYTES + 1)
    if digest(data) != name:
        raise MalformedRecordError(f"{key}: its content has another digest than its name")
    return decode(kind, data, key)


def shard_ref(name: str, sizes: Iterable[int], rows: Iterable[int | None]) -> ShardRef:
    """Return a reference to a shard: its digest and its totals."""
    sizes, rows = list(sizes), list(rows)
    return ShardRef(digest=name, files=len(sizes), size=sum(sizes), rows=total_rows(rows))


def total_rows(rows: Iterable[int | None]) -> int | None:
    """Return the sum of row counts, or None if any is unknown."""
    total = 0
    for count in rows:
        if count is None:
            return None
        total += count
    return total


class ShardRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reference to one shard of a plan or an outcome, with its totals."""

    digest: str
    files: Count
    size: Count
    rows: Count | None
