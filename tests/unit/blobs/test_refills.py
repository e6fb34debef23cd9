"""A blob only in the HA store is read from it once, however many requests arrive at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.server.reader import SingleFlight
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import LockgateError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.blobs.server import BlobWorld, key_of

MANY = 20
DATA = b"bytes of a blob " * 1_000


def ask_all(world: BlobWorld, job_id: str, blob_key: BlobKey) -> list[bytes | str]:
    """Get the blob with many threads; returns each thread's result."""

    def ask(_: int) -> bytes | str:
        try:
            return world.server.get(job_id, blob_key)
        except LockgateError as error:
            return str(error)

    return list(in_parallel(ask, range(MANY), MANY))


def counted_reads() -> list[str]:
    """Return a list that gets an element with each read of the HA store."""
    reads: list[str] = []
    FAILPOINTS.observer = lambda point: reads.append(point) if point == "blob-ha.get.before" else None
    return reads


@pytest.fixture
def looked(world: BlobWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold each thread after its lookup in the local store until all threads have found nothing there."""
    everybody = threading.Barrier(MANY)
    verified = world.server.stores.local.verified
    seen = threading.local()

    def after_everybody(job_id: str, blob_key: BlobKey) -> Path:
        try:
            return verified(job_id, blob_key)
        finally:
            if threading.current_thread() is not threading.main_thread() and not hasattr(seen, "once"):
                seen.once = everybody.wait()

    monkeypatch.setattr(world.server.stores.local, "verified", after_everybody)


@pytest.mark.usefixtures("looked")
def test_many_requests_for_a_blob_only_in_the_ha_store_cost_one_read(world: BlobWorld) -> None:
    blob = world.server.put(DATA, job_id="sales", owners=["job"])
    world.server.stores.local.delete(*key_of(blob))
    reads = counted_reads()
    assert ask_all(world, *key_of(blob)) == [DATA] * MANY
    assert len(reads) == 1


@pytest.mark.usefixtures("looked")
def test_all_requests_waiting_for_one_read_get_its_error(world: BlobWorld) -> None:
    blob = world.server.put(DATA, job_id="sales", owners=["job"])
    world.server.stores.local.delete(*key_of(blob))
    FAILPOINTS.arm({"blob-ha.get.before": "refuse@1"})
    answers = ask_all(world, *key_of(blob))
    FAILPOINTS.arm({})
    assert all(answer == DATA or "refused on purpose" in str(answer) for answer in answers)
    assert any("refused on purpose" in str(answer) for answer in answers)
    assert world.server.get(*key_of(blob)) == DATA


def test_a_fork_does_not_wait_for_a_flight_of_its_parent() -> None:
    flights: SingleFlight[str] = SingleFlight()

    def fork() -> str:
        child = os.fork()
        if child == 0:
            os._exit(0 if flights.do("a", lambda: "child's") == "child's" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return "parent's"

    assert flights.do("a", fork) == "parent's"


def test_an_error_of_a_flight_is_raised_for_all_waiters_and_not_kept() -> None:
    flights: SingleFlight[str] = SingleFlight()

    def fail() -> str:
        raise StoreUnavailableError("away")

    with pytest.raises(StoreUnavailableError, match="away"):
        flights.do("a", fail)
    assert flights.do("a", lambda: "back") == "back"
