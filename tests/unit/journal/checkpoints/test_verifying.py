"""Verifying compares the folded entries with checkpoints and tables, and names the differences."""

from __future__ import annotations

import sqlite3
import tracemalloc
from pathlib import Path

import pytest

from lockgate.storage_core.errors import JournalUnavailableError, LeaseHeldError, MalformedJournalError
from lockgate.storage_core.journal import Leases, Mutation, Stamp
from lockgate.storage_core.journal.checkpoint import snapshot_file, temp_database
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoint, Checkpoints
from lockgate.storage_core.journal.checkpoint.replay import BATCH
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from tests.support.journal.checkpoints import JournalWorld, file_of, flip_a_byte, take, task

pytestmark = pytest.mark.slow


def test_folding_the_entries_gives_the_contents_of_checkpoints_and_tables(journals: JournalWorld) -> None:
    journals.live(1)
    one = journals.checkpoint()
    journals.live(2)
    two = journals.checkpoint()
    journals.live(3)

    found = journals.verify()

    assert (found.findings, found.since, found.entries) == ((), Stamp(), 39)
    assert found.checkpoints == (one.stamp, two.stamp)


def test_renewals_write_no_entries_and_cause_no_finding(journals: JournalWorld) -> None:
    [stamp] = journals.apply(take("a"))
    journals.clock.sleep(20)
    with journals.open() as journal:
        assert Leases(journal).renew("h", {"a": stamp}) == {}
    journals.checkpoint()
    journals.clock.sleep(20)
    journals.apply(TakeLease(resource="a", holder="g", purpose="take over", soft_s=1, hard_s=2))

    assert journals.verify().findings == ()


def test_a_renewal_after_the_clock_was_set_back_leaves_entries_that_can_be_replayed(
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
            "UPDATE entry SET result = replace(result, 'free', 'suspended') WHERE sequence = 1",
            r"entry 1\.1: take-lease gives .* where .* was answered",
        ),
        (
            "UPDATE entry SET payload = replace(payload, '1-b', '1-a') WHERE sequence = 2",
            r"entry 1\.2: take-lease was accepted once, and is refused on replay",
        ),
    ],
)
def test_verifying_names_each_error(journals: JournalWorld, damage: str, words: str) -> None:
    journals.live()
    journals.run_sql(damage)

    found = journals.verify()

    with pytest.raises(MalformedJournalError, match=words):
        found.check()


def test_verifying_detects_every_changed_or_truncated_checkpoint(journals: JournalWorld) -> None:
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


def test_a_checkpoint_pruned_during_verification_is_not_a_finding(
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


def test_a_checkpoint_of_wrong_tables_is_not_marked_verified(journals: JournalWorld) -> None:
    journals.live()
    journals.run_sql("DELETE FROM claim")
    journals.checkpoint()

    found = journals.verify()

    assert found.checkpoints == ()
    assert journals.prune().up_to is None


def test_a_checkpoint_with_a_row_twice_is_not_verified(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals.live()
    with monkeypatch.context() as patched:
        once = snapshot_file.table_rows
        patched.setattr(snapshot_file, "table_rows", lambda reading: (*once(reading), next(once(reading))))
        journals.checkpoint()

    found = journals.verify()

    assert found.checkpoints == ()
    [finding] = found.findings
    assert finding.endswith(": a row is there twice")


def test_some_of_many_differing_rows_are_named_and_the_rest_are_counted(journals: JournalWorld) -> None:
    write_tasks(journals, 50)
    journals.run_sql("UPDATE task_attempt SET files = 2")

    found = journals.verify()

    assert len(found.findings) == 21
    assert "part-0/x: files is 2, and entries give 1" in found.findings[0]
    assert found.findings[-1] == "the tables: 30 more rows differ"


@pytest.mark.soak
def test_verifying_a_journal_of_many_rows_needs_no_more_memory_than_one_of_few(tmp_path: Path) -> None:
    journals = JournalWorld(tmp_path, f"sqlite:///{tmp_path / 'journal.db'}", "")
    peaks = list[int]()
    for number, count in enumerate((BATCH, 4 * BATCH)):
        write_tasks(journals, count, job=number)
        journals.checkpoint()
        tracemalloc.start()
        try:
            assert journals.verify().findings == ()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()

    few, many = peaks
    assert many < 2 * few, peaks


def test_a_full_disk_for_temporary_files_is_reported(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tasks(journals, 2000)
    connect = temp_database._connect

    def connect_to_little() -> sqlite3.Connection:
        connection = connect()
        connection.execute("PRAGMA max_page_count=60").close()
        return connection

    monkeypatch.setattr(temp_database, "_connect", connect_to_little)
    with pytest.raises(JournalUnavailableError, match=r"temporary database .* is full; .* TMPDIR"):
        journals.verify()

    monkeypatch.undo()
    assert journals.verify().findings == ()


def write_tasks(journals: JournalWorld, count: int, *, job: int = 1) -> None:
    with journals.open() as journal:
        journal.write([Mutation(op=task(job, part), asked_s=journals.clock.now) for part in range(count)])


def test_a_recovery_after_the_clock_jumped_leaves_entries_that_can_be_replayed(
    journals: JournalWorld,
) -> None:
    [stamp] = journals.apply(take("a"))
    journals.clock.jump(3600.0)
    with journals.open() as journal:
        leases = Leases(journal)
        assert leases.renew("h", {"a": stamp}) == {}
        view = leases.look("a")
        assert view is not None
        journals.clock.sleep(view.lapses_in_s)
        view = leases.look("a")
        assert view is not None
        assert view.lapses_in_s == 0
        leases.take("a", "g", purpose="recover", soft_s=30, hard_s=120, seen=view.lease)

    assert journals.verify().findings == ()
    assert journals.restore(with_entries=True).entries == 2
