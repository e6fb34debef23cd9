"""Long lists as shards: records of at most 1,000 entries, each named by its digest.

A name that is a digest can be written twice without harm, and read without trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, R, Record, decode, digest, encode
from lockgate.storage_core.commit.records.job import ShardRef
from lockgate.storage_core.commit.records.job_folder import create
from lockgate.storage_core.errors import AlreadyExistsError, MalformedRecordError, OutcomeUnknownError
from lockgate.storage_core.stores import Store

SHARD_ENTRIES: Final = 1000


T = TypeVar("T")


def batches(entries: Iterable[T], length: int = SHARD_ENTRIES) -> Iterator[tuple[T, ...]]:
    """Cut entries into tuples of at most `length`."""
    rest = iter(entries)
    while batch := tuple(islice(rest, length)):
        yield batch


def write_shard(store: Store, key_of: Callable[[str], str], record: Record) -> str:
    """Write a record under its own digest, which is returned; one that stands already is the same."""
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
    """Read a shard and check that it is what its name says.

    Raises:
        MalformedRecordError: Its bytes have another digest, or are not such a record.
    """
    key = key_of(name)
    data = store.get(key, length=MAX_RECORD_BYTES + 1)
    if digest(data) != name:
        raise MalformedRecordError(f"{key}: its content has another digest than its name says")
    return decode(kind, data, key)


def shard_ref(name: str, sizes: Iterable[int], rows: Iterable[int | None]) -> ShardRef:
    """Describe a shard: its digest and what its entries add up to."""
    sizes, rows = list(sizes), list(rows)
    return ShardRef(digest=name, files=len(sizes), size=sum(sizes), rows=total_rows(rows))


def total_rows(rows: Iterable[int | None]) -> int | None:
    """Add up rows; unknown if any is."""
    total = 0
    for count in rows:
        if count is None:
            return None
        total += count
    return total
