"""A SQLite file that is put back from a copy while no process has it open issues no stamp twice."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from lockgate.storage_core.errors import ConflictError, SafeModeError, StateLostError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Leases, Mutation, Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints, take_checkpoint
from lockgate.storage_core.journal.checkpoint.restore import restore, restore_in_place
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from lockgate.storage_core.journal.write.head import EPOCH_STEP
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from tests.support.commit.destination import Crash
from tests.support.journal.database import take


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    store = open_store(str(tmp_path / "checkpoints"), load_settings(home=tmp_path, journal_url="none"))
    return Checkpoints(store, "main")


def opened(path: Path) -> Journal:
    return open_journal(f"sqlite:///{path}")


def write(path: Path, *resources: str) -> list[Stamp]:
    """Write entries in a process of its own."""
    with opened(path) as journal:
        return [journal.apply(take(resource)).stamp for resource in resources]


def side_file(path: Path) -> Path:
    return path.with_name("journal.db-head-main")


def copy_of(path: Path) -> Path:
    """Copy a database that no process has open, with `cp`."""
    return Path(shutil.copyfile(path, path.with_name("copy.db")))


def put_back(copy: Path, path: Path) -> None:
    shutil.copyfile(copy, path)


def is_new(stamp: Stamp, sequence: int) -> bool:
    """Return whether a stamp has this sequence in an epoch that began by itself: its number is random."""
    return stamp.epoch > 1 and stamp.epoch % EPOCH_STEP > 0 and stamp.sequence == sequence


def test_the_same_stamp_is_not_issued_to_two_holders(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, "a")
    copy = copy_of(path)
    assert write(path, "b", "c") == [Stamp(1, 2), Stamp(1, 3)]
    put_back(copy, path)

    with opened(path) as journal:
        status = journal.status()
        epoch = status.stamp.epoch
        assert (epoch > 1, status.stamp.sequence, status.safe_since_s is not None) == (True, 1, True)
        assert status.why_safe == "put-back: " + (
            "the file was put back from a copy: it was at 1.1, and 1.3 was acknowledged"
        )
        assert journal.apply(take("b")).stamp == Stamp(epoch, 2)
        with pytest.raises(SafeModeError):
            Leases(journal).take("z", "h", purpose="recover", soft_s=1, hard_s=1)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "lockgate.journal"]
    assert f"2 entries are lost; epoch {epoch} has begun, in safe mode" in warning
    assert "lockgate journal leave-safe-mode" in warning


def test_a_copy_put_back_after_a_group_of_entries_is_noticed(path: Path) -> None:
    write(path, "a")
    copy = copy_of(path)
    with opened(path) as journal:
        journal.write([Mutation(op=take("b")), Mutation(op=take("c"))])
    put_back(copy, path)
    with opened(path) as journal:
        assert is_new(journal.status().stamp, 1)


def test_the_epoch_begins_once_and_safe_mode_can_be_left(path: Path) -> None:
    write(path, "a")
    copy = copy_of(path)
    write(path, "b")
    put_back(copy, path)
    with opened(path) as journal, opened(path) as other:
        assert leave_safe_mode(journal) == 1
        assert other.status().safe_since_s is None
    assert is_new(write(path, "c")[0], 2)  # leaving safe mode needs no entry for a held lease


def test_a_copy_put_back_by_rename_or_with_its_log_is_noticed(path: Path) -> None:
    journal = opened(path)
    journal.apply(take("a"))
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    copies = {file: file.read_bytes() for file in files}  # while it is open: the entry is in the log
    journal.apply(take("b"))
    journal.close()
    for file, content in copies.items():
        file.with_suffix(".new").write_bytes(content)
        file.with_suffix(".new").rename(file)
    assert is_new(write(path, "c")[0], 2)


def test_an_open_process_is_refused_until_a_new_process_has_begun_an_epoch(path: Path) -> None:
    write(path, "a")
    copy = copy_of(path)
    with opened(path) as journal:
        journal.apply(take("b"))
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink()
        put_back(copy, path)
        with pytest.raises(StateLostError, match=r"is at 1\.1"):
            journal.apply(take("c"))
        assert is_new(write(path, "c")[0], 2)
        assert is_new(journal.apply(take("d")).stamp, 3)


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_process_that_dies_while_it_begins_the_epoch_leaves_it_to_the_next(path: Path, point: str) -> None:
    write(path, "a")
    copy = copy_of(path)
    write(path, "b")
    put_back(copy, path)

    def die(hit: str) -> None:
        if hit.endswith(f"journal-put-back.{point}"):
            raise Crash(hit)

    FAILPOINTS.observer = die
    try:
        with pytest.raises(Crash):
            opened(path)
    finally:
        FAILPOINTS.observer = None
    with opened(path) as journal:
        assert journal.status().safe_since_s is not None
        assert is_new(journal.apply(take("b")).stamp, 2)


def test_a_write_that_is_not_committed_is_not_acknowledged(path: Path) -> None:
    with opened(path) as journal:
        journal.apply(take("a"))
        event.listen(journal.database._engine, "commit", crash)
        with pytest.raises(Crash):
            journal.apply(take("b"))
    with opened(path) as journal:
        assert (journal.status().stamp, journal.status().safe_since_s) == (Stamp(1, 1), None)


def crash(connection: object) -> None:
    raise Crash("before the commit")


def test_a_death_between_commit_and_acknowledgement_is_no_loss(path: Path) -> None:
    write(path, "a")
    before = side_file(path).read_bytes()
    write(path, "b")
    side_file(path).write_bytes(before)
    assert write(path, "c") == [Stamp(1, 3)]


def remove(path: Path) -> None:
    path.unlink()


def garble(path: Path) -> None:
    path.write_bytes(b"\xff" * 8_192)


@pytest.mark.parametrize("damage", [remove, garble])
def test_a_damaged_or_missing_side_file_stops_nothing(path: Path, damage: Callable[[Path], None]) -> None:
    write(path, "a")
    damage(side_file(path))
    assert write(path, "b") == [Stamp(1, 2)]
    copy = copy_of(path)
    write(path, "c")
    put_back(copy, path)
    assert is_new(write(path, "c")[0], 3)  # it protects again


def test_a_side_file_that_cannot_be_written_is_reported_once_and_stops_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side_file(path).mkdir()
    assert write(path, "a", "b") == [Stamp(1, 1), Stamp(1, 2)]
    assert [record.getMessage() for record in caplog.records if "journal.db-head-main" in record.getMessage()]
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING


def test_another_journal_in_its_place_is_not_taken_for_a_copy(path: Path) -> None:
    write(path, "a", "b")
    path.unlink()
    with opened(path) as journal:
        assert (journal.status().stamp, journal.status().safe_since_s) == (Stamp(1, 0), None)


def test_a_restore_in_place_still_refuses_a_backup_that_is_older_than_a_checkpoint(
    path: Path, checkpoints: Checkpoints
) -> None:
    write(path, "a")
    copy = copy_of(path)
    write(path, "b")
    with opened(path) as journal, journal.reading() as reading:
        take_checkpoint(reading, checkpoints)
    put_back(copy, path)
    with opened(path) as journal, pytest.raises(ConflictError, match="restore that into an empty database"):
        restore_in_place(journal, checkpoints)
    spare = path.with_name("spare.db")
    with opened(spare) as journal:
        assert restore(journal, checkpoints).stamp == Stamp(EPOCH_STEP, 2)


def test_a_backup_that_was_put_back_can_be_restored_in_place_and_verified(
    path: Path, checkpoints: Checkpoints
) -> None:
    write(path, "a")
    copy = copy_of(path)
    write(path, "b")
    put_back(copy, path)
    with opened(path) as journal:
        first = restore_in_place(journal, checkpoints)
        assert (first.epoch % EPOCH_STEP, first.sequence) == (0, 1)
        assert restore_in_place(journal, checkpoints) == Stamp(first.epoch + EPOCH_STEP, 1)
        with journal.reading() as reading:
            take_checkpoint(reading, checkpoints)
        assert restore_in_place(journal, checkpoints) == Stamp(first.epoch + 2 * EPOCH_STEP, 1)
    put_back(copy, path)
    with opened(path) as journal:
        stamp = journal.apply(take("b")).stamp
        assert (stamp.epoch > first.epoch + 2 * EPOCH_STEP, stamp.epoch % EPOCH_STEP > 0, stamp.sequence) == (
            True,
            True,
            2,
        )
        with journal.reading() as reading:
            assert verify(reading, checkpoints).findings == ()
