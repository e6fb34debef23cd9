"""Common calls of the store contract, and concurrent calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lockgate.storage_core.errors import NotAppliedError, OutcomeUnknownError
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import PendingUpload, Store

RACERS = 16


def keys(store: Store, prefix: str = "", **options: object) -> list[str]:
    return [found.key for page in store.pages(prefix, **options) for found in page]


def open_uploads(store: Store, prefix: str = "") -> list[str]:
    return [found.key for page in store.upload_pages(prefix) for found in page]


def upload(store: Store, key: str, *chunks: bytes) -> PendingUpload:
    token = new_token()
    upload_id = store.begin_upload(key, token)
    parts, offset = [], 0
    for number, chunk in enumerate(chunks, start=1):
        parts.append(store.put_part(key, upload_id, number, offset, chunk))
        offset += len(chunk)
    return store.seal_upload(key, upload_id, token, parts)


def race(calls: Sequence[Callable[[], object]]) -> list[object]:
    """Make all calls concurrently and return their results or the Lockgate errors they raised."""
    start = Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait()
        try:
            return call()
        except (NotAppliedError, OutcomeUnknownError) as fault:
            return fault

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))
