"""Restoring: sources, targets, the new epoch, and refusals."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import ConflictError, MalformedJournalError, ObjectNotFoundError
from lockgate.storage_core.journal import Leases, Stamp
from lockgate.storage_core.journal.checkpoint.restore import restore, restore_in_place
from lockgate.storage_core.journal.write.head import EPOCH_STEP, begin_epoch, lock_head
from tests.support.journal.checkpoints import JournalWorld, file_of, flip_a_byte, take


def test_surviving_entries_are_replayed_on_the_checkpoint(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.live(2)

    restored = journals.restore(with_entries=True)

    assert (restored.entries, restored.stamp) == (13, Stamp(EPOCH_STEP, 26))
    assert journals.rows(journals.spare_url) == journals.rows()
    assert journals.verify(journals.spare_url).findings == ()


def test_a_lease_taken_after_the_checkpoint_is_lost_to_its_holder(journals: JournalWorld) -> None:
    [before] = journals.apply(take("a"))
    journals.checkpoint()
    [after] = journals.apply(take("b"))
    journals.restore()

    with journals.open(journals.spare_url) as journal:
        lost = Leases(journal).renew("h", {"a": before, "b": after})

    assert list(lost) == ["b"]
    assert "it does not exist any more; stop" in lost["b"]


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

    assert (first.stamp, second.stamp) == (Stamp(EPOCH_STEP, 13), Stamp(2 * EPOCH_STEP, 13))


def test_no_stamp_falls_when_a_restore_knows_nothing_of_ten_failovers(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    with journals.open() as lost:
        for _ in range(10):
            with lost.database.write() as connection:
                head = lock_head(connection, lost.database, lost.known)
                begin_epoch(connection, "main", head.stamp, timeline=1, reason="test", now_s=head.now_s)
        newest = lost.status().stamp

    assert journals.restore().stamp > newest


def test_a_restore_refuses_a_database_that_holds_newer_data(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.restore()
    journals.apply(take("z"), url=journals.spare_url)

    with pytest.raises(ConflictError, match=rf"not empty: it holds this journal at stamp {EPOCH_STEP}\.14"):
        journals.restore()


def test_a_restore_refuses_a_database_that_holds_another_journal(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.apply(take("z"), url=journals.spare_url)
    before = journals.rows(journals.spare_url)

    with pytest.raises(ConflictError, match="not empty: it holds another journal"):
        journals.restore()

    assert journals.rows(journals.spare_url) == before


def test_a_restore_refuses_a_damaged_checkpoint_and_accepts_an_older_one_given_by_name(
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


def test_a_restore_refuses_the_snapshot_of_another_journal(journals: JournalWorld) -> None:
    journals.live(1)
    mine = file_of(journals, journals.checkpoint().stamp)
    strange = JournalWorld(journals.root / "strange", f"sqlite:///{journals.root / 'strange.db'}", "")
    strange.live(1)
    mine.write_bytes(file_of(strange, strange.checkpoint().stamp).read_bytes())

    with pytest.raises(MalformedJournalError, match="is of another journal"):
        journals.restore()

    assert journals.rows(journals.spare_url)["lease"] == []


def test_a_restore_refuses_an_old_database_that_is_behind_a_checkpoint(journals: JournalWorld) -> None:
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


def test_a_restore_without_a_checkpoint_is_refused(journals: JournalWorld) -> None:
    with pytest.raises(ObjectNotFoundError, match="no checkpoint of journal 'main'"):
        journals.restore()


def test_a_database_restored_from_its_own_backup_continues_in_a_new_epoch(
    journals: JournalWorld,
) -> None:
    journals.live(1)
    journals.checkpoint()
    with journals.open() as journal:
        stamp = restore_in_place(journal, journals.checkpoints)
        assert journal.status().safe_since_s is not None
    assert stamp == Stamp(EPOCH_STEP, 13)
    assert journals.apply(take("z")) == [Stamp(EPOCH_STEP, 14)]
    assert journals.verify().findings == ()


def test_a_backup_that_is_behind_a_checkpoint_is_refused(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.run_sql("DELETE FROM entry WHERE sequence = 13")
    journals.run_sql("UPDATE head SET sequence = 12")

    with journals.open() as journal, pytest.raises(ConflictError, match=r"at 1\.12, a checkpoint at 1\.13"):
        restore_in_place(journal, journals.checkpoints)


def test_a_backup_is_accepted_although_a_checkpoint_holds_entries_dropped_by_an_earlier_restore(
    journals: JournalWorld,
) -> None:
    journals.live(1)
    chosen = journals.checkpoint()
    journals.live(2)
    journals.checkpoint()
    journals.restore(checkpoint=chosen.stamp)

    with journals.open(journals.spare_url) as journal:
        assert restore_in_place(journal, journals.checkpoints) == Stamp(2 * EPOCH_STEP, 13)
