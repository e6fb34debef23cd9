"""Fewer requests are under way while S3 is throttling."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lockgate.storage_core.stores.s3.crt.limit import Limit


def run(limit: Limit, *, throttled: bool) -> None:
    with limit.slot() as slot:
        slot.throttled = throttled


def together(limit: Limit, count: int) -> bool:
    """Return whether so many requests can be under way at a time."""
    barrier = Barrier(count)

    def hold(_: int) -> bool:
        with limit.slot():
            try:
                barrier.wait(0.2)
            except Exception:  # noqa: BLE001 - broken: some waited for a slot
                return False
            return True

    with ThreadPoolExecutor(count) as threads:
        return all(threads.map(hold, range(count)))


def test_as_many_requests_as_allowed_are_under_way() -> None:
    assert together(Limit(8), 8)


def test_a_refusal_halves_the_limit_and_successes_restore_it() -> None:
    limit = Limit(8)
    run(limit, throttled=True)
    assert not together(limit, 5)
    for _ in range(60):
        run(limit, throttled=False)
    assert together(limit, 8)


def test_one_request_is_always_allowed() -> None:
    limit = Limit(8)
    for _ in range(20):
        run(limit, throttled=True)
    assert together(limit, 1)


def test_an_error_frees_the_slot() -> None:
    limit = Limit(1)
    try:
        with limit.slot():
            raise ConnectionError
    except ConnectionError:
        pass
    run(limit, throttled=False)
