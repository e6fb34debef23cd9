"""Checkpoints: what is in one, what verifying finds, what may be pruned, what a restore refuses."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from storage_core.errors import (
    ConflictError,
    LeaseHeldError,
    MalformedJournalError,
    ObjectNotFoundError,
    SafeModeError,
    StaleRequestError,
)
from storage_core.failpoints import FAILPOINTS
from storage_core.journal import Leases, LeaseState, Mutation, Refused, Stamp, Written
from storage_core.journal.checkpoint import Checkpoint, Checkpoints
from storage_core.journal.ops.leases import TakeLease
from storage_core.journal.reading import Reading
from storage_core.journal.restore import restore, restore_in_place
from storage_core.journal.rows import Lease
from storage_core.journal.safe_mode import leave_safe_mode, refuse_in_safe_mode
from tests.checkpoint_world import DEST, JournalWorld, take
from tests.postgres_world import Server


@pytest.fixture
def journals(journal_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> JournalWorld:
    """An empty journal on each kind of database, with a spare database beside it."""
    if journal_url.startswith("sqlite"):
        spare = f"sqlite:///{tmp_path / 'spare.db'}"
    else:
        server: Server = request.getfixturevalue("postgres")
        spare = server.new_database(journal_url.rpartition("/")[2] + "_spare")
    return JournalWorld(tmp_path, journal_url, spare)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)


def file_of(journals: JournalWorld, stamp: Stamp) -> Path:
    [path] = (journals.root / "checkpoints/main/checkpoints").glob(f"*{stamp.sequence:018d}.jsonl.zst")
    return path


# What a checkpoint is


def test_a_checkpoint_is_named_by_its_stamp_and_made_once(journals: JournalWorld) -> None:
    journals.live()

    first, again = journals.checkpoint(), journals.checkpoint()

    assert first == again
    assert first.stamp == Stamp(1, 13)
    assert file_of(journals, first.stamp).name == "000000000000000001.000000000000000013.jsonl.zst"


def test_a_restored_journal_holds_every_row_and_every_lease(journals: JournalWorld) -> None:
    journals.live()
    journals.checkpoint()

    restored = journals.restore()

    assert (restored.checkpoint, restored.entries, restored.stamp) == (Stamp(1, 13), 0, Stamp(1000, 13))
    assert journals.rows(journals.spare_url) == journals.rows()
    assert len(journals.rows()["lease"]) == 3


def test_a_request_that_was_answered_before_the_checkpoint_is_answered_the_same_after_a_restore(
    journals: JournalWorld,
) -> None:
    mutation = Mutation(op=take("a"), asked_s=journals.clock.now)
    with journals.open() as journal:
        [first] = journal.write([mutation])
    journals.checkpoint()
    journals.restore()

    with journals.open(journals.spare_url) as journal:
        [again] = journal.write([mutation])

    assert isinstance(first, Written)
    assert isinstance(again, Written)
    assert (again.stamp, again.result, again.is_repeat) == (first.stamp, first.result, True)


def test_another_journal_of_the_same_name_cannot_put_its_checkpoints_there(journals: JournalWorld) -> None:
    journals.live()
    journals.checkpoint()

    with pytest.raises(MalformedJournalError, match=r"another journal.*LOCKGATE_CHECKPOINT_URL"):
        journals.checkpoint(journals.spare_url)


def test_a_checkpoint_that_is_pruned_as_soon_as_it_is_made_is_told_of(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals.live()
    create = Checkpoints.create

    def create_and_lose(checkpoints: Checkpoints, stamp: Stamp, file: IO[bytes]) -> bool:
        is_new = create(checkpoints, stamp, file)
        checkpoints.delete(stamp)
        return is_new

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "create", create_and_lose)
        with pytest.raises(ConflictError, match=r"checkpoint 1\.13 .* was pruned .* take another"):
            journals.checkpoint()
    assert journals.checkpoint().stamp == Stamp(1, 13)


def test_a_snapshot_greater_than_a_part_is_uploaded_in_parts(journals: JournalWorld) -> None:
    from storage_core.journal.checkpoint import take_checkpoint
    from storage_core.stores import open_store

    journals.live()
    small = Checkpoints(open_store(str(journals.root / "checkpoints")), "main", part_bytes=100)
    with journals.open() as journal, journal.reading() as reading:
        taken, is_new = take_checkpoint(reading, small)

    assert is_new
    assert taken.size > 100
    journals.restore()
    assert journals.rows(journals.spare_url) == journals.rows()


# Verifying


def test_folding_the_entries_gives_what_checkpoints_and_tables_hold(journals: JournalWorld) -> None:
    journals.live(1)
    one = journals.checkpoint()
    journals.live(2)
    two = journals.checkpoint()
    journals.live(3)

    found = journals.verify()

    assert (found.findings, found.since, found.entries) == ((), Stamp(), 39)
    assert found.checkpoints == (one.stamp, two.stamp)


def test_renewals_are_no_entries_and_no_finding(journals: JournalWorld) -> None:
    [stamp] = journals.apply(take("a"))
    journals.clock.sleep(20)
    with journals.open() as journal:
        assert Leases(journal).renew("h", {"a": stamp}) == {}
    journals.checkpoint()
    journals.clock.sleep(20)
    journals.apply(TakeLease(resource="a", holder="g", purpose="take over", soft_s=1, hard_s=2))

    assert journals.verify().findings == ()


def test_a_renewal_by_a_clock_that_was_put_back_leaves_entries_that_can_be_replayed(
    journals: JournalWorld,
) -> None:
    [stamp] = journals.apply(take("a"))
    journals.clock.now -= 60
    with journals.open() as journal:
        assert Leases(journal).renew("h", {"a": stamp}) == {}
    journals.clock.sleep(125)
    with journals.open() as journal, pytest.raises(LeaseHeldError):
        Leases(journal).take("a", "g", purpose="recover", soft_s=30, hard_s=120)
    journals.clock.sleep(60)
    journals.apply(take("a", "recover", "g"))

    assert journals.verify().findings == ()
    assert journals.restore(with_entries=True).entries == 2


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE job SET mode = 'replace' WHERE job_id = 'job1-g1'", r"the tables: job .*job1-g1: mode"),
        ("DELETE FROM claim", r"the tables: claim .*n1 is missing"),
        ("UPDATE lease SET standing = 'upright' WHERE resource = 'job:1-a'", r"lease job:1-a cannot be read"),
        (
            "INSERT INTO destination (journal, url, first_s, last_s) VALUES ('main', 'x', 1, 1)",
            r"the tables: destination x is there, and no entry made it",
        ),
        ("DELETE FROM entry WHERE sequence = 5", r"entry 5 is missing: the journal has a gap"),
        ("DELETE FROM entry WHERE sequence > 11", r"entries 12 to 13 are missing"),
        ("UPDATE head SET sequence = 12", r"entry 1\.13: the journal's head is at 1\.12"),
        ("UPDATE entry SET op = 'invent' WHERE sequence = 5", r"entry 1\.5: 'invent' is no kind of entry"),
        ("UPDATE entry SET payload = '{}' WHERE sequence = 5", r"entry 1\.5: not a readable free-lease"),
        ("UPDATE entry SET epoch = 2 WHERE sequence = 5", r"entry 2\.5: by the journal's epochs .* 1"),
        (
            "UPDATE entry SET result = replace(result, 'free', 'parked') WHERE sequence = 1",
            r"entry 1\.1: take-lease gives .* where .* was answered",
        ),
        (
            "UPDATE entry SET payload = replace(payload, '1-b', '1-a') WHERE sequence = 2",
            r"entry 1\.2: take-lease was accepted once, and is refused on replay",
        ),
    ],
)
def test_verifying_names_what_is_wrong(journals: JournalWorld, damage: str, words: str) -> None:
    journals.live()
    journals.run_sql(damage)

    found = journals.verify()

    with pytest.raises(MalformedJournalError, match=words):
        found.check()


def test_verifying_finds_every_checkpoint_that_was_changed_or_cut_off(journals: JournalWorld) -> None:
    stamps = []
    for number in (1, 2, 3):
        journals.live(number)
        stamps.append(journals.checkpoint().stamp)
    flip_a_byte(file_of(journals, stamps[0]))
    cut = file_of(journals, stamps[1])
    cut.write_bytes(cut.read_bytes()[:-20])

    found = journals.verify()

    assert found.checkpoints == (stamps[2],)
    assert [words.partition(".zst")[0][-18:] for words in found.findings] == [
        f"{stamp.sequence:018d}.jsonl"[-18:] for stamp in stamps[:2]
    ]


def test_a_checkpoint_that_is_pruned_while_verifying_is_no_finding(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals.live(1)
    gone = file_of(journals, journals.checkpoint().stamp)
    journals.live(2)
    kept = journals.checkpoint()
    listed = Checkpoints.all

    def all_and_then_one_less(checkpoints: Checkpoints) -> list[Checkpoint]:
        found = listed(checkpoints)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Checkpoints, "all", all_and_then_one_less)
    found = journals.verify()

    assert (found.findings, found.checkpoints) == ((), (kept.stamp,))


def test_a_checkpoint_of_wrong_tables_is_not_vouched_for(journals: JournalWorld) -> None:
    journals.live()
    journals.run_sql("DELETE FROM claim")
    journals.checkpoint()

    found = journals.verify()

    assert found.checkpoints == ()
    assert journals.prune().up_to is None


# Pruning


def test_only_what_a_verified_checkpoint_holds_is_pruned(journals: JournalWorld) -> None:
    journals.live(1)
    one = journals.checkpoint()
    unverified = journals.prune()
    assert (unverified.up_to, unverified.entries) == (None, 0)
    assert journals.verify().findings == ()
    journals.live(2)
    journals.checkpoint()

    rehearsed, pruned = journals.prune(dry_run=True), journals.prune()

    assert (pruned.up_to, pruned.entries) == (one.stamp, 13)
    assert (rehearsed.up_to, rehearsed.entries, rehearsed.is_dry_run) == (one.stamp, 13, True)
    assert sequences(journals) == list(range(14, 27))
    found = journals.verify()
    assert (found.findings, found.since, found.entries) == ((), one.stamp, 13)


def sequences(journals: JournalWorld) -> list[int]:
    with journals.open() as journal, journal.reading() as reading:
        return [entry.sequence for entry in reading.entries(0, 1000)]


def test_a_pruned_request_is_known_for_its_time_and_refused_after_it(journals: JournalWorld) -> None:
    mutation = Mutation(op=take("a"), asked_s=journals.clock.now)
    with journals.open() as journal:
        journal.write([mutation])
    journals.checkpoint()
    journals.verify()
    assert journals.prune().requests == 0
    with journals.open() as journal:
        [known] = journal.write([mutation])
    assert isinstance(known, Written)
    assert known.is_repeat

    journals.clock.sleep(90_000)
    assert journals.prune().requests == 1
    with journals.open() as journal:
        [unknown] = journal.write([mutation])

    assert isinstance(unknown, Refused)
    assert isinstance(unknown.error, StaleRequestError)


def test_a_checkpoint_that_changed_after_it_was_verified_stops_the_pruning(journals: JournalWorld) -> None:
    journals.live()
    taken = journals.checkpoint()
    journals.verify()
    flip_a_byte(file_of(journals, taken.stamp))

    with pytest.raises(MalformedJournalError):
        journals.prune()

    assert len(sequences(journals)) == 13


def test_verifying_anew_vouches_anew_where_the_word_is_of_no_use(journals: JournalWorld) -> None:
    journals.live()
    taken = journals.checkpoint()
    journals.verify()
    [word] = (journals.root / "checkpoints/main/verified").iterdir()
    word.write_bytes(word.read_bytes()[:-20])
    with pytest.raises(MalformedJournalError, match="verify anew"):
        journals.prune()

    journals.verify()

    assert journals.prune().up_to == taken.stamp


def test_old_checkpoints_go_but_the_newest_verified_one_stays(journals: JournalWorld) -> None:
    stamps = []
    for number in range(4):
        journals.live(number)
        stamps.append(journals.checkpoint().stamp)
        if number == 1:
            journals.verify()

    assert journals.prune(kept=1, dry_run=True).checkpoints == (stamps[0], stamps[2])
    assert len(journals.checkpoints.all()) == 4
    journals.prune(kept=1)

    assert [found.stamp for found in journals.checkpoints.all()] == [stamps[1], stamps[3]]
    assert journals.checkpoints.vouched() == [stamps[1]]
    assert journals.verify().findings == ()


def test_a_failover_amid_pruning_keeps_the_entries_that_took_the_place_of_the_pruned_ones(
    journals: JournalWorld,
) -> None:
    journals.live(1)
    journals.live(2)
    journals.checkpoint()
    journals.verify()

    def fail_over(point: str) -> None:
        if point == "prune.journal-prune.before":
            FAILPOINTS.observer = None
            journals.fail_over(kept=20)
            journals.apply(*(take(f"new {number}") for number in range(10)))

    FAILPOINTS.observer = fail_over
    try:
        with pytest.raises(ConflictError, match=r"checkpoint 1\.26 is not of the history"):
            journals.prune()
    finally:
        FAILPOINTS.observer = None

    assert sequences(journals) == list(range(1, 31))


# Restoring


def test_entries_that_survived_are_replayed_on_the_checkpoint(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.live(2)

    restored = journals.restore(with_entries=True)

    assert (restored.entries, restored.stamp) == (13, Stamp(1000, 26))
    assert journals.rows(journals.spare_url) == journals.rows()
    assert journals.verify(journals.spare_url).findings == ()


def test_entries_from_the_beginning_need_no_checkpoint(journals: JournalWorld) -> None:
    journals.live(1)

    restored = journals.restore(with_entries=True)

    assert (restored.checkpoint, restored.entries) == (None, 13)
    assert journals.rows(journals.spare_url) == journals.rows()


def test_a_restore_that_is_run_again_changes_nothing(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()

    first, again = journals.restore(), journals.restore()

    assert (first.is_repeat, again.is_repeat) == (False, True)
    assert (again.stamp, again.identity) == (first.stamp, first.identity)


def test_two_restores_never_share_an_epoch(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    first = journals.restore()
    with (
        journals.open(f"sqlite:///{journals.root / 'third.db'}") as third,
    ):
        second = restore(third, journals.checkpoints)

    assert (first.stamp, second.stamp) == (Stamp(1000, 13), Stamp(2000, 13))


def test_writing_goes_on_in_the_new_epoch_without_a_gap(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.restore()

    assert journals.apply(take("z"), url=journals.spare_url) == [Stamp(1000, 14)]

    journals.checkpoint(journals.spare_url)
    assert journals.verify(journals.spare_url).findings == ()


def test_a_restore_refuses_a_database_that_holds_newer_data(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.restore()
    journals.apply(take("z"), url=journals.spare_url)

    with pytest.raises(ConflictError, match=r"not empty: it holds this journal at stamp 1000\.14"):
        journals.restore()


def test_a_restore_refuses_a_database_that_holds_another_journal(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.apply(take("z"), url=journals.spare_url)
    before = journals.rows(journals.spare_url)

    with pytest.raises(ConflictError, match="not empty: it holds another journal"):
        journals.restore()

    assert journals.rows(journals.spare_url) == before


def test_a_restore_refuses_a_damaged_checkpoint_and_takes_an_older_one_that_is_named(
    journals: JournalWorld,
) -> None:
    journals.live(1)
    older = journals.checkpoint()
    journals.live(2)
    flip_a_byte(file_of(journals, journals.checkpoint().stamp))

    with pytest.raises(MalformedJournalError, match="nothing was changed"):
        journals.restore()
    assert journals.rows(journals.spare_url)["lease"] == []

    assert journals.restore(with_entries=True, checkpoint=older.stamp).entries == 13
    assert journals.rows(journals.spare_url) == journals.rows()


def test_a_restore_refuses_entries_with_a_gap(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.live(2)
    journals.run_sql("DELETE FROM entry WHERE sequence = 14")

    with pytest.raises(MalformedJournalError, match="entry 14 is missing"):
        journals.restore(with_entries=True)

    assert journals.rows(journals.spare_url)["lease"] == []


def test_a_restore_refuses_the_entries_of_another_journal(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.run_sql("UPDATE head SET identity = 'another'")

    with pytest.raises(MalformedJournalError, match="holds another"):
        journals.restore(with_entries=True)


def test_a_restore_refuses_the_snapshot_of_another_journal(journals: JournalWorld) -> None:
    journals.live(1)
    mine = file_of(journals, journals.checkpoint().stamp)
    strange = JournalWorld(journals.root / "strange", f"sqlite:///{journals.root / 'strange.db'}", "")
    strange.live(1)
    mine.write_bytes(file_of(strange, strange.checkpoint().stamp).read_bytes())

    with pytest.raises(MalformedJournalError, match="is of another journal"):
        journals.restore()

    assert journals.rows(journals.spare_url)["lease"] == []


def test_a_restore_refuses_an_old_database_that_a_checkpoint_is_ahead_of(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.restore()
    journals.apply(take("z"), url=journals.spare_url)
    journals.checkpoint(journals.spare_url)

    with (
        journals.open(f"sqlite:///{journals.root / 'third.db'}") as third,
        journals.open() as source,
        pytest.raises(ConflictError, match="does not follow"),
    ):
        restore(third, journals.checkpoints, source=source)


def test_without_a_checkpoint_there_is_nothing_to_restore_from(journals: JournalWorld) -> None:
    with pytest.raises(ObjectNotFoundError, match="no checkpoint of journal 'main'"):
        journals.restore()


def test_a_database_that_came_back_from_its_own_backup_goes_on_in_an_epoch_of_its_own(
    journals: JournalWorld,
) -> None:
    journals.live(1)
    journals.checkpoint()
    with journals.open() as journal:
        stamp = restore_in_place(journal, journals.checkpoints)
        assert journal.status().safe_since_s is not None
    assert stamp == Stamp(1000, 13)
    assert journals.apply(take("z")) == [Stamp(1000, 14)]
    assert journals.verify().findings == ()


def test_a_backup_that_a_checkpoint_is_ahead_of_is_refused(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.run_sql("DELETE FROM entry WHERE sequence = 13")
    journals.run_sql("UPDATE head SET sequence = 12")

    with journals.open() as journal, pytest.raises(ConflictError, match=r"at 1\.12, a checkpoint at 1\.13"):
        restore_in_place(journal, journals.checkpoints)


def test_a_backup_goes_on_although_a_checkpoint_is_of_what_an_earlier_restore_left_behind(
    journals: JournalWorld,
) -> None:
    journals.live(1)
    chosen = journals.checkpoint()
    journals.live(2)
    journals.checkpoint()
    journals.restore(checkpoint=chosen.stamp)

    with journals.open(journals.spare_url) as journal:
        assert restore_in_place(journal, journals.checkpoints) == Stamp(2000, 13)


# What takes long


@pytest.mark.requires("postgres")
@pytest.mark.parametrize(
    ("work", "call"),
    [
        ("checkpoint", "checkpoint.create.before"),
        ("verify", "verify.get.after"),
        ("prune", "prune.get.after"),
        ("restore", "restore.get.after"),
    ],
)
def test_postgresql_keeps_a_state_open_however_slow_a_call_of_the_store_is(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, call: str
) -> None:
    url, spare_url = (postgres.new_database(f"slow_{work}_{name}") for name in ("first", "spare"))
    journals = JournalWorld(tmp_path, url, spare_url)
    journals.live(1)
    journals.checkpoint()
    journals.verify()
    journals.live(2)
    held: list[Reading] = []
    limits: list[str] = []

    def hold(reading: Reading) -> None:
        stay_open(reading)
        held.append(reading)

    def look(point: str) -> None:
        if point == call:
            question = "SHOW idle_in_transaction_session_timeout"
            limits.extend(reading.connection.exec_driver_sql(question).scalar_one() for reading in held)

    stay_open = Reading.stay_open
    monkeypatch.setattr(Reading, "stay_open", hold)
    FAILPOINTS.observer = look
    try:
        journals.restore(with_entries=True) if work == "restore" else getattr(journals, work)()
    finally:
        FAILPOINTS.observer = None

    assert set(limits) == {"0"}


# Safe mode


def test_in_safe_mode_nothing_is_recovered_or_pruned_and_writers_go_on(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.verify()
    journals.restore()
    journals.clock.sleep(100_000)

    with journals.open(journals.spare_url) as journal:
        with pytest.raises(SafeModeError):
            Leases(journal).take("job:1-a", "r", purpose="recover", soft_s=1, hard_s=2)
        with pytest.raises(SafeModeError, match=r"reaping.*leave-safe-mode"):
            refuse_in_safe_mode(journal, "reaping")
        assert Leases(journal).take("new", "h", purpose="write", soft_s=1, hard_s=2) == Stamp(1000, 14)
    with pytest.raises(SafeModeError):
        journals.prune(journals.spare_url)


def test_leaving_safe_mode_gives_every_holder_its_limits_anew(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.restore()
    journals.clock.sleep(100_000)

    with journals.open(journals.spare_url) as journal:
        assert leave_safe_mode(journal) == 2
        assert leave_safe_mode(journal) is None
        refuse_in_safe_mode(journal, "reaping")
        states = {view.lease.resource: view.state for view in Leases(journal).in_states(LeaseState)}
        journals.clock.sleep(119)
        with journal.reading() as reading:
            parked = reading.get(Lease, "job:1-b")

    assert states == {
        "job:1-a": LeaseState.HELD,
        "job:1-b": LeaseState.PARKED,
        "job:1-c": LeaseState.FREE,
    }
    assert parked is not None
    assert (parked.parked_until_s or 0) > journals.clock.now
    assert journals.verify(journals.spare_url).findings == ()


def test_claims_at_a_store_survive_a_restore(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.restore()

    [claim] = journals.rows(journals.spare_url)["claim"]
    assert (claim.store, claim.name, claim.body) == (DEST, "n1", "AAAA")
