"""Fewer requests are under way while S3 is throttling."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lockgate.storage_core.stores.s3.crt.limit import Limit


def run(limit: Limit, *, throttled: bool | None) -> None:
    limit.take().free(throttled=throttled)


def together(limit: Limit, count: int) -> bool:
    """Return whether so many requests can be under way at a time."""
    barrier = Barrier(count)

    def hold(_: int) -> bool:
        slot = limit.take()
        try:
            barrier.wait(0.2)
        except Exception:  # noqa: BLE001 - broken: some waited for a slot
            return False
        else:
            return True
        finally:
            slot.free(throttled=None)

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


def test_silence_leaves_the_limit_as_it_is() -> None:
    limit = Limit(8)
    run(limit, throttled=None)
    assert together(limit, 8)


def test_one_request_is_always_allowed() -> None:
    limit = Limit(8)
    for _ in range(20):
        run(limit, throttled=True)
    assert together(limit, 1)


def test_a_slot_is_freed_once() -> None:
    limit = Limit(1)
    slot = limit.take()
    slot.free(throttled=None)
    slot.free(throttled=None)
    assert not together(limit, 2)
