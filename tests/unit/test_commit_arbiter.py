"""The journal as arbiter for stores without conditional create: one winner a name, and whole jobs only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from storage_core.commit import layout, sweep_uploads
from storage_core.commit.arbitrated import INLINE_BYTES, ArbitratedStore
from storage_core.commit.folder import JobFolder, claim
from storage_core.commit.phase import JobPhase
from storage_core.commit.probing import forget_destination, probed
from storage_core.commit.records import ShortIdClaim, StoreRecord
from storage_core.commit.shards import write_shard
from storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    JournalUnavailableError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from storage_core.failpoints import FAILPOINTS, step
from storage_core.ids import JobId, new_token
from storage_core.journal import Journal, open_journal
from storage_core.journal.claims import Claims
from storage_core.journal.configured import close_journals, configured_journal
from storage_core.journal.rows import Claim
from storage_core.stores import Store, open_store
from storage_core.stores.probe import with_capabilities
from tests.arbiter_world import arbiter_world
from tests.commit_world import Crash, ManualClock, World, write
from tests.s3_world import S3World

RACERS = 8
NAME = "_lockgate/log/00000007.turn"
LONG = b"x" * (INLINE_BYTES + 1)
OLD = {"day=1/a.csv": b"old a", "day=2/b.csv": b"old b"}
NEW = {"day=1/c.csv": b"new c"}


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Leave no failpoint armed and no journal open behind."""
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})
    close_journals()


@pytest.fixture
def plain(tmp_path: Path) -> Store:
    """A store that nobody trusts with conditions: what it would refuse, nobody asks it."""
    store = open_store(str(tmp_path / "dest"))
    capabilities = msgspec.structs.replace(
        store.capabilities, conditional_create=False, conditional_put=False, conditional_delete=False
    )
    return with_capabilities(store, capabilities)


@pytest.fixture
def store(plain: Store, journal: Journal) -> ArbitratedStore:
    return arbitrated(plain, journal)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with arbiter_world(tmp_path, monkeypatch) as world:
        yield world


def arbitrated(plain: Store, journal: Journal) -> ArbitratedStore:
    return ArbitratedStore(plain, Claims(journal, plain.url))


def dies_at(point: str, run: Callable[[], object]) -> None:
    """Run, and die at a point of that name."""

    def observe(name: str) -> None:
        if name == point:
            raise Crash(name)

    FAILPOINTS.observer = observe
    try:
        with pytest.raises(Crash), step("test"):
            run()
    finally:
        FAILPOINTS.observer = None


def at_once(calls: Sequence[Callable[[], object]]) -> list[object]:
    """Make all calls at once; returns their answers, or the errors that they raised."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait()
        try:
            return call()
        except AlreadyExistsError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def keys(store: Store, prefix: str = "") -> list[str]:
    return [info.key for page in store.pages(prefix) for info in page]


class TestNames:
    def test_the_second_create_is_refused_and_changes_nothing(self, store: ArbitratedStore) -> None:
        store.create(NAME, b"first")

        with pytest.raises(AlreadyExistsError):
            store.create(NAME, b"second")
        assert store.get(NAME) == b"first"

    @pytest.mark.parametrize("length", [1, len(LONG)], ids=["short", "long"])
    def test_of_creators_with_connections_of_their_own_exactly_one_wins(
        self, plain: Store, journal_url: str, length: int
    ) -> None:
        journals = [open_journal(journal_url) for _ in range(RACERS)]
        stores = [arbitrated(plain, journal) for journal in journals]
        bodies = [b"%d" % number * length for number in range(RACERS)]
        try:
            answers = at_once(
                [lambda s=s, b=b: s.create(NAME, b) for s, b in zip(stores, bodies, strict=True)]
            )
            winners = [me for me, answer in enumerate(answers) if not isinstance(answer, Exception)]
            assert len(winners) == 1
            assert {store.get(NAME) for store in stores} == {bodies[winners[0]]}
            assert keys(plain) == [NAME]
        finally:
            for journal in journals:
                journal.close()

    @pytest.mark.parametrize("data", [b"mine", b"", LONG], ids=["short", "empty", "long"])
    @pytest.mark.parametrize("call", ["get", "head", "create"])
    def test_a_name_whose_claimant_died_before_the_copy_is_written_by_whoever_comes_by(
        self, plain: Store, store: ArbitratedStore, journal_url: str, data: bytes, call: str
    ) -> None:
        dies_at("test.journal-write.after", lambda: store.create(NAME, data))
        assert NAME not in keys(plain)

        with open_journal(journal_url) as another:
            comer = arbitrated(plain, another)
            if call == "create":
                with pytest.raises(AlreadyExistsError):
                    comer.create(NAME, b"another's")
            else:
                getattr(comer, call)(NAME)
        assert plain.get(NAME) == data
        assert keys(plain) == [NAME]

    def test_a_name_whose_claimant_died_before_the_claim_is_free(
        self, plain: Store, store: ArbitratedStore
    ) -> None:
        dies_at("test.journal-write.before", lambda: store.create(NAME, LONG))

        with pytest.raises(ObjectNotFoundError):
            store.get(NAME)
        store.create(NAME, b"another's")
        assert plain.get(NAME) == b"another's"

    def test_a_long_record_never_goes_through_the_journal(
        self, store: ArbitratedStore, journal: Journal
    ) -> None:
        store.create(NAME, LONG)

        with journal.reading() as reading:
            (claimed,) = reading.where(Claim, {})
            (entry,) = reading.entries(0, 10)
        assert len(claimed.body) < 100
        assert len(entry.payload) < 500

    def test_names_that_are_digests_and_the_summary_for_readers_need_no_arbiter(
        self, store: ArbitratedStore, journal: Journal
    ) -> None:
        record = ShortIdClaim(job_id=JobId("sales-g1"))
        for _ in range(2):
            write_shard(store, layout.log_shard, record)
        store.create(layout.SUCCESS, b"{}")

        with pytest.raises(AlreadyExistsError):
            store.create(layout.SUCCESS, b"{}")
        assert store.claims.names() == []
        assert journal.status().stamp.sequence == 0

    def test_what_the_journal_is_no_arbiter_of_is_refused(self, store: ArbitratedStore) -> None:
        token = new_token()
        upload_id = store.begin_upload("a", token)
        part = store.put_part("a", upload_id, 1, 0, b"x")
        pending = store.seal_upload("a", upload_id, token, [part])

        with pytest.raises(UnsupportedStoreError):
            store.create("data.csv", b"")
        with pytest.raises(UnsupportedStoreError):
            store.complete_upload(pending, if_absent=True)
        assert keys(store) == []
        store.complete_upload(pending)
        assert keys(store) == ["a"]

    def test_an_object_that_the_journal_has_lost_is_respected(
        self, plain: Store, store: ArbitratedStore
    ) -> None:
        plain.put(NAME, b"from before the journal was restored")

        with pytest.raises(AlreadyExistsError):
            store.create(NAME, b"mine")
        assert store.get(NAME) == b"from before the journal was restored"


class TestDeletion:
    def test_a_deleted_name_is_free_again(self, store: ArbitratedStore) -> None:
        for number in (b"1", b"2"):
            store.create(NAME, number)
            assert store.get(NAME) == number
            store.delete(NAME)
            store.delete(NAME)
            assert store.claims.names() == []
        with pytest.raises(ObjectNotFoundError):
            store.head(NAME)

    def test_deleting_many_releases_those_that_are_claimed(self, store: ArbitratedStore) -> None:
        names = [f"_lockgate/jobs/a-g1/tasks/t/{number}.pendingset" for number in range(5)]
        for name in names[:3]:
            store.create(name, b"x")
        store.put("_lockgate/jobs/a-g1/lease.json", b"x")

        assert store.delete_many([*names, "_lockgate/jobs/a-g1/lease.json", "day=1/a.csv"]) == []
        assert store.claims.names() == []
        assert keys(store) == []

    def test_a_deletion_that_died_after_the_claims_release_leaves_the_object_to_refuse_others(
        self, store: ArbitratedStore
    ) -> None:
        store.create(NAME, b"first")
        dies_at("test.delete.before", lambda: store.delete(NAME))

        assert store.claims.names() == []
        with pytest.raises(AlreadyExistsError):
            store.create(NAME, b"second")
        assert store.get(NAME) == b"first"


class TestTrouble:
    def test_a_copy_that_the_store_refuses_leaves_the_outcome_unknown_for_the_claim_stands(
        self, plain: Store, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)

        def refuse(name: str) -> None:
            if name == "test.put.before":
                raise StoreUnavailableError(name)

        FAILPOINTS.observer = refuse
        with step("test"), pytest.raises(OutcomeUnknownError):
            store.create(NAME, b"mine")
        FAILPOINTS.observer = None
        assert keys(plain) == []
        assert store.get(NAME) == b"mine"

    def test_a_claim_whose_answer_is_lost_for_good_is_read_back(
        self, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)

        def lose(name: str) -> None:
            if name == "test.journal-write.after":
                raise OutcomeUnknownError(name)

        record = ShortIdClaim(job_id=JobId("sales-g1"))
        FAILPOINTS.observer = lose
        with step("test"):
            assert claim(store, "_lockgate/ids/abc", record) == record

    def test_without_the_journal_nothing_is_created_and_nothing_concluded(
        self, plain: Store, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)

        def down(name: str) -> None:
            if ".journal-" in name:
                raise JournalUnavailableError(name)

        FAILPOINTS.observer = down
        with pytest.raises(JournalUnavailableError):
            store.create(NAME, b"mine")
        with pytest.raises(JournalUnavailableError):
            store.get(NAME)
        FAILPOINTS.observer = None
        assert keys(plain) == []
        assert store.claims.names() == []

    def test_a_journal_that_is_away_for_a_moment_is_asked_again(
        self, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
        away: list[str] = []

        def down(name: str) -> None:
            if ".journal-" in name and name.endswith(".before") and away.count(name) < 3:
                away.append(name)
                raise JournalUnavailableError(name)

        FAILPOINTS.observer = down
        with step("test"), pytest.raises(ObjectNotFoundError):
            store.get(NAME)
        with step("test"):
            store.create(NAME, b"mine")
        assert store.get(NAME) == b"mine"
        assert away == ["test.journal-read.before"] * 3 + ["test.journal-write.before"] * 3

    def test_a_lost_answer_and_a_journal_that_is_down_then_are_no_refusal(
        self, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
        is_down = False

        def fail(name: str) -> None:
            nonlocal is_down
            if name == "test.journal-write.after":
                is_down = True
                raise OutcomeUnknownError(name)
            if is_down and name == "test.journal-read.before":
                raise JournalUnavailableError(name)

        FAILPOINTS.observer = fail
        with step("test"), pytest.raises(OutcomeUnknownError):
            claim(store, "_lockgate/ids/abc", ShortIdClaim(job_id=JobId("sales-g1")))


class TestDestinations:
    def test_two_first_set_ups_at_once_agree_on_what_they_saw(self, s3: S3World) -> None:
        driver = replace(s3.driver, options={**s3.driver.options, "parallelism": 4})

        def look(world: World) -> StoreRecord:
            found = probed(world.store, world.settings, world.clock)
            return msgspec.json.decode(found.get(layout.PROBED), type=StoreRecord)

        one, two = at_once([lambda: look(driver), lambda: look(s3.other)])
        assert one == two
        assert isinstance(one, StoreRecord)
        assert not one.capabilities.conditional_create

    def test_another_journal_than_the_destinations_is_refused_by_name(
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

    def test_a_destination_that_was_deleted_by_hand_is_forgotten_by_hand(self, s3: S3World) -> None:
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

    @pytest.mark.parametrize(
        "options",
        [{"unique_filenames": False}, {"committer": "direct", "allow_unsafe": True}],
        ids=["plain names", "seen early"],
    )
    def test_what_would_need_conditional_completions_is_refused_at_set_up(
        self, s3: S3World, options: dict[str, object]
    ) -> None:
        with pytest.raises(UnsupportedStoreError, match="no conditional create"):
            s3.driver.open_job("new", **options)
        assert keys(s3.other.store, layout.JOBS) == []

    def test_a_replace_that_would_take_a_foreign_file_away_is_refused(self, s3: S3World) -> None:
        s3.driver.run("old", OLD)
        s3.driver.store.put("day=1/foreign.csv", b"foreign")

        with pytest.raises(ConflictError, match=r"foreign\.csv is no job's file"):
            s3.driver.run("new", NEW, mode="replace")
        assert s3.other.visible() == {**OLD, "day=1/foreign.csv": b"foreign"}


class TestJobs:
    def test_a_life_of_jobs_is_as_on_any_store(self, s3: S3World) -> None:
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

    def test_what_a_driver_left_undecided_is_aborted_by_another_process(self, s3: S3World) -> None:
        job = s3.driver.open_job("left")
        write(job, "t", NEW)
        job.close()
        close_journals()

        assert [result.ended for result in s3.other.recover()] == [JobPhase.FAILED]
        assert s3.other.visible() == {}
        assert s3.other.open_uploads() == []

    def test_of_a_driver_and_a_recovery_that_decide_at_once_one_is_followed_by_both(
        self, s3: S3World
    ) -> None:
        job = s3.driver.open_job("sales")
        write(job, "t", NEW)
        decided: list[JobPhase] = []

        other = replace(s3.other, clock=ManualClock(s3.other.clock.now))  # with a connection of its own

        def abort_meanwhile(name: str) -> None:
            # The driver has seen that no decision stands, and is about to claim its own.
            if name == "decide.journal-write.before" and not decided:
                FAILPOINTS.observer = None
                decided.append(other.attach("sales-g1").abort("by another process"))

        FAILPOINTS.observer = abort_meanwhile
        with pytest.raises(Exception, match="by another process"):
            job.commit()
        assert decided == [JobPhase.FAILED]
        assert s3.other.visible() == {}

    def test_two_jobs_that_commit_at_once_take_turns(self, tmp_path: Path, s3: S3World) -> None:
        first, second = s3.driver.open_job("first"), s3.other.open_job("second")
        write(first, "t", OLD)
        write(second, "t", NEW)

        receipts = at_once([first.commit, second.commit])
        assert sorted(receipt.turn for receipt in receipts) == [1, 2]  # type: ignore[attr-defined]
        assert s3.other.visible() == {**OLD, **NEW}

    def test_long_pending_sets_are_committed_and_leave_nothing_beside_them(
        self, s3: S3World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("storage_core.commit.arbitrated.INLINE_BYTES", 100)
        with s3.driver.open_job("sales") as job:
            write(job, "t", NEW)
            assert [key for key in keys(s3.other.store, layout.JOBS) if ".pendingset." in key] == []
            job.commit()
        assert s3.other.visible() == NEW
        assert s3.other.live() == s3.other.keys()

    def test_a_buried_job_leaves_nothing_in_the_journal_but_its_short_id_and_its_turn(
        self, s3: S3World
    ) -> None:
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

    def test_a_turn_that_a_dead_driver_claimed_and_did_not_copy_is_passed(self, s3: S3World) -> None:
        dead = s3.driver.open_job("dead")
        write(dead, "t", OLD)

        def die(name: str) -> None:
            if name == "turn.journal-write.after":
                raise Crash(name)

        FAILPOINTS.observer = die
        with pytest.raises(Crash):
            dead.commit()
        FAILPOINTS.observer = None
        dead.close()
        close_journals()
        s3.other.clock.sleep(1_000_000)

        job = s3.other.run("living", NEW)
        assert job.receipt is not None
        assert job.receipt.turn == 2
        assert JobFolder(s3.other.store, JobId("dead-g1")).phase() is JobPhase.OPEN


def s3_journal(s3: S3World) -> Journal:
    journal = configured_journal(s3.driver.settings, s3.driver.clock)
    assert journal is not None
    return journal
