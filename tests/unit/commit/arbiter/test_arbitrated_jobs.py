"""Jobs at a store without conditional create: supported operations, and refusals with their reasons."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job_record import StoreRecord
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.commit.setup.capabilities import (
    forget_destination,
    probe_again,
    with_probed_capabilities,
)
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import ConflictError, UnsupportedStoreError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.probe import PROBES
from tests.support.commit.arbitrated_destination import arbiter_world
from tests.support.commit.destination import ManualClock, World, write
from tests.support.s3.destination import S3World

OLD = {"day=1/a.csv": b"old a", "day=2/b.csv": b"old b"}
NEW = {"day=1/c.csv": b"new c"}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with arbiter_world(tmp_path, monkeypatch) as world:
        yield world


def concurrently(calls: Sequence[Callable[[], object]]) -> list[object]:
    """Make all calls concurrently and return their results."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def keys(store: Store, prefix: str = "") -> list[str]:
    return [info.key for page in store.pages(prefix) for info in page]


class TestDestinations:
    def test_two_concurrent_first_set_ups_agree_on_the_capabilities(self, s3: S3World) -> None:
        driver = replace(s3.driver, options={**s3.driver.options, "parallelism": 4})

        def look(world: World) -> StoreRecord:
            found = with_probed_capabilities(world.store, world.settings, world.clock)
            return decode_json(found.get(layout.PROBED), StoreRecord)

        one, two = concurrently([lambda: look(driver), lambda: look(s3.other)])
        assert one == two
        assert isinstance(one, StoreRecord)
        assert not one.capabilities.conditional_create

    def test_a_journal_other_than_the_destinations_is_refused_by_name(
        self, s3: S3World, tmp_path: Path
    ) -> None:
        s3.driver.run("old", OLD)
        stranger = replace(
            s3.other, options={**s3.other.options, "journal_url": f"sqlite:///{tmp_path}/b.db"}
        )

        for call in (lambda: stranger.attach("old-g1"), lambda: stranger.open_job("new")):
            with pytest.raises(UnsupportedStoreError, match=r"journal\.db.*b\.db.*LOCKGATE_JOURNAL_URL"):
                call()
        assert s3.other.visible() == OLD

    def test_a_process_without_a_journal_is_refused(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        without = replace(s3.other, options={**s3.other.options, "journal_url": "none"})

        with pytest.raises(UnsupportedStoreError, match="LOCKGATE_JOURNAL_URL"):
            without.attach("old-g1")

    def test_claims_of_a_destination_deleted_by_hand_are_removed_by_a_command(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        everything = keys(s3.other.store)
        journal = configured_journal(s3.driver.settings, s3.driver.clock)
        assert journal is not None
        with pytest.raises(ConflictError, match="was not deleted"):
            forget_destination(s3.other.store, journal)

        s3.other.store.delete_many(everything)
        with pytest.raises(ConflictError, match="lockgate store forget"):
            s3.driver.open_job("old")
        assert forget_destination(s3.other.store, journal) > 5

        job = s3.driver.run("old", NEW)
        assert job.job_id == "old-g1"
        assert s3.other.visible() == NEW

    def test_a_record_of_the_store_that_was_deleted_by_hand_is_written_again(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        before = s3.other.store.get(layout.PROBED)
        s3.other.store.delete(layout.PROBED)

        s3.driver.run("new", NEW)
        assert s3.other.visible() == {**OLD, **NEW}
        assert s3.other.store.get(layout.PROBED) == before

    def test_a_probe_of_another_process_is_no_sign_of_a_destination(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        store = s3.other.store
        store.delete_many([info.key for page in store.pages("") for info in page])
        store.put(f"{PROBES}0123/plain", b"of another process")
        with pytest.raises(ConflictError, match="deleted by hand"):
            s3.driver.open_job("new")

    def test_a_store_is_not_probed_again_where_a_journal_decides(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        with pytest.raises(ConflictError, match=r"journal\.db decides there"):
            probe_again(s3.other.store)
        assert s3.other.visible() == OLD

    @pytest.mark.parametrize(
        "options",
        [{"unique_filenames": False}, {"committer": "direct", "allow_unsafe": True}],
        ids=["plain names", "seen early"],
    )
    def test_a_job_that_needs_conditional_completions_is_refused_at_set_up(
        self, s3: S3World, options: dict[str, object]
    ) -> None:
        with pytest.raises(UnsupportedStoreError, match="no conditional create"):
            s3.driver.open_job("new", **options)
        assert keys(s3.other.store, layout.JOBS) == []

    def test_a_replace_that_would_delete_a_foreign_file_is_refused(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        s3.driver.store.put("day=1/foreign.csv", b"foreign")

        with pytest.raises(ConflictError, match=r"foreign\.csv was not written by a job"):
            s3.driver.run("new", NEW, mode="replace")
        assert s3.other.visible() == {**OLD, "day=1/foreign.csv": b"foreign"}


class TestJobs:
    def test_jobs_run_as_on_any_other_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal_url: str
    ) -> None:
        with arbiter_world(tmp_path, monkeypatch, journal_url) as s3:
            self.live_a_life(s3)

    def live_a_life(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        assert s3.other.visible() == OLD
        s3.driver.run("more", NEW)
        assert s3.other.visible() == {**OLD, **NEW}
        s3.driver.run("new", NEW, mode="replace", scope="partitions")
        assert s3.other.visible() == {"day=2/b.csv": OLD["day=2/b.csv"], **NEW}
        with s3.driver.open_job("given up") as job:
            write(job, "t", {"x.csv": b"x"})
            job.abort()
        s3.driver.run("again", OLD, mode="replace")
        assert s3.other.visible() == OLD
        assert s3.other.live() == s3.other.keys()
        assert s3.other.open_uploads() == []
        assert s3.other.recover() == []

    def test_a_driver_and_a_recovery_that_decide_at_once_follow_the_same_decision(self, s3: S3World) -> None:
        job = s3.driver.open_job("sales")
        write(job, "t", NEW)
        decided: list[JobPhase] = []

        other = replace(s3.other, clock=ManualClock(s3.other.clock.now))  # with a connection of its own

        def abort_meanwhile(name: str) -> None:
            # The driver has seen that there is no decision, and is about to claim its own.
            if name == "decide.journal-write.before" and not decided:
                FAILPOINTS.observer = None
                decided.append(other.attach("sales-g1").abort("by another process"))

        FAILPOINTS.observer = abort_meanwhile
        with pytest.raises(Exception, match="by another process"):
            job.commit()
        assert decided == [JobPhase.FAILED]
        assert s3.other.visible() == {}

    def test_a_deleted_job_folder_leaves_no_claims_in_the_journal(
        self, s3: S3World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lockgate.storage_core.commit.destination.log.CHECKPOINT_TURNS", 1)
        for _ in range(2):
            s3.driver.run("sales", NEW)
        claims = Claims(s3_journal(s3), s3.driver.url)
        held = [name for name in claims.names() if "/sales-g1/" in name]
        assert "_lockgate/jobs/sales-g1/COMMIT_STARTED" in held
        assert not any("/tasks/" in name for name in held)

        s3.driver.clock.sleep(s3.driver.settings.tombstone_s + 1)
        sweep_uploads(s3.driver.url, dry_run=False, settings=s3.driver.settings, clock=s3.driver.clock)
        assert keys(s3.other.store, "_lockgate/jobs/sales-g1/") == []
        assert [name for name in claims.names() if "/sales-g1/" in name] == []


def s3_journal(s3: S3World) -> Journal:
    journal = configured_journal(s3.driver.settings, s3.driver.clock)
    assert journal is not None
    return journal
