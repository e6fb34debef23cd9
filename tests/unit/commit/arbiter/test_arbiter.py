"""The journal as arbiter for stores without conditional create: exactly one creator of a name wins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.job_record import ShortIdClaim
from lockgate.storage_core.commit.records.shards import write_shard
from lockgate.storage_core.commit.setup.arbitrated_store import ArbitratedStore
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    JournalUnavailableError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.ids import JobId, new_token
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.probe import with_capabilities
from tests.support.commit.destination import Crash

RACERS = 8
NAME = "_lockgate/log/00000007.turn"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Disarm all failpoints after the test."""
    yield
    FAILPOINTS.observer = None
    FAILPOINTS.arm({})


@pytest.fixture
def plain(tmp_path: Path) -> Store:
    """Return a store without conditional requests: none are sent to it."""
    store = open_store(str(tmp_path / "dest"))
    capabilities = msgspec.structs.replace(
        store.capabilities, conditional_create=False, conditional_put=False, conditional_delete=False
    )
    return with_capabilities(store, capabilities)


@pytest.fixture
def store(plain: Store, journal: Journal) -> ArbitratedStore:
    return arbitrated(plain, journal)


def arbitrated(plain: Store, journal: Journal) -> ArbitratedStore:
    return ArbitratedStore(plain, Claims(journal, plain.url))


def dies_at(point: str, run: Callable[[], object]) -> None:
    """Run a function and raise at the failpoint of this name."""

    def observe(name: str) -> None:
        if name == point:
            raise Crash(name)

    FAILPOINTS.observer = observe
    try:
        with pytest.raises(Crash), step("test"):
            run()
    finally:
        FAILPOINTS.observer = None


def concurrently(calls: Sequence[Callable[[], object]]) -> list[object]:
    """Make all calls concurrently and return their results or the errors they raised."""
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
    def test_exactly_one_of_several_creators_with_separate_connections_wins(
        self, plain: Store, journal_url: str
    ) -> None:
        journals = [open_journal(journal_url) for _ in range(RACERS)]
        stores = [arbitrated(plain, journal) for journal in journals]
        bodies = [b"%d" % number for number in range(RACERS)]
        try:
            answers = concurrently(
                [lambda s=s, b=b: s.create(NAME, b) for s, b in zip(stores, bodies, strict=True)]
            )
            winners = [me for me, answer in enumerate(answers) if not isinstance(answer, Exception)]
            assert len(winners) == 1
            assert {store.get(NAME) for store in stores} == {bodies[winners[0]]}
            assert keys(plain) == [NAME]
        finally:
            for journal in journals:
                journal.close()

    @pytest.mark.parametrize("call", ["get", "head", "create"])
    def test_the_next_caller_writes_a_name_whose_claimant_died_before_the_copy(
        self, plain: Store, store: ArbitratedStore, journal_url: str, call: str
    ) -> None:
        dies_at("test.journal-write.after", lambda: store.create(NAME, b"mine"))
        assert NAME not in keys(plain)

        with open_journal(journal_url) as another:
            comer = arbitrated(plain, another)
            if call == "create":
                with pytest.raises(AlreadyExistsError):
                    comer.create(NAME, b"another's")
            else:
                getattr(comer, call)(NAME)
        assert plain.get(NAME) == b"mine"
        assert keys(plain) == [NAME]

    def test_shards_named_by_digest_and_the_success_file_make_no_claim(
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

    def test_conditional_creation_of_data_files_is_refused(self, store: ArbitratedStore) -> None:
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

    def test_an_object_whose_claim_the_journal_has_lost_is_not_overwritten(
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

    def test_deleting_many_names_releases_those_that_are_claimed(self, store: ArbitratedStore) -> None:
        names = [f"_lockgate/jobs/a-g1/tasks/t/{number}.pendingset" for number in range(5)]
        for name in names[:3]:
            store.create(name, b"x")
        store.put("_lockgate/jobs/a-g1/lease.json", b"x")

        assert store.delete_many([*names, "_lockgate/jobs/a-g1/lease.json", "day=1/a.csv"]) == []
        assert store.claims.names() == []
        assert keys(store) == []

    def test_after_a_deletion_that_died_past_the_claims_release_the_object_still_refuses_others(
        self, store: ArbitratedStore
    ) -> None:
        store.create(NAME, b"first")
        dies_at("test.delete.before", lambda: store.delete(NAME))

        assert store.claims.names() == []
        with pytest.raises(AlreadyExistsError):
            store.create(NAME, b"second")
        assert store.get(NAME) == b"first"


class TestTrouble:
    def test_a_refused_copy_leaves_the_outcome_unknown_because_the_claim_remains(
        self, plain: Store, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lockgate.storage_core.retry.time.sleep", lambda seconds: None)

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
        monkeypatch.setattr("lockgate.storage_core.retry.time.sleep", lambda seconds: None)

        def lose(name: str) -> None:
            if name == "test.journal-write.after":
                raise OutcomeUnknownError(name)

        record = ShortIdClaim(job_id=JobId("sales-g1"))
        FAILPOINTS.observer = lose
        with step("test"):
            assert claim(store, "_lockgate/ids/abc", record) == record

    def test_without_the_journal_nothing_is_created_and_the_call_fails(
        self, plain: Store, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lockgate.storage_core.retry.time.sleep", lambda seconds: None)

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

    def test_a_call_to_a_briefly_unavailable_journal_is_retried(
        self, store: ArbitratedStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lockgate.storage_core.retry.time.sleep", lambda seconds: None)
        away: list[str] = []

        def down(name: str) -> None:
            if name.startswith("test.journal-") and name.endswith(".before") and away.count(name) < 3:
                away.append(name)
                raise JournalUnavailableError(name)

        FAILPOINTS.observer = down
        with step("test"), pytest.raises(ObjectNotFoundError):
            store.get(NAME)
        with step("test"):
            store.create(NAME, b"mine")
        assert store.get(NAME) == b"mine"
        assert away == ["test.journal-read.before"] * 3 + ["test.journal-write.before"] * 3
