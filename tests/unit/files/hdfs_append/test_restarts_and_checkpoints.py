"""HDFS Append and Truncates, section "Namenode Restarts and Checkpoints".

The journal's rows are the image, and are written with each entry. So a restart replays nothing; what HDFS
does at a restart happens at a restore: from a checkpoint, with the entries after it or without them.
"""

from __future__ import annotations

import itertools

import pytest

from lockgate.storage_core.errors import SafeModeError
from lockgate.storage_core.files.namespace.members import RegisterVolume
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from tests.support.files.file_world import TEXT, FileWorld
from tests.support.journal.checkpoints import dying_at

TABLES = ("inode", "file", "file_block", "file_member", "volume")


def image(world: FileWorld, url: str = "") -> dict[str, list[Row]]:
    """Return the rows of files in a database."""
    rows = world.journals.rows(url)
    return {table: rows[table] for table in TABLES}


def continue_restored(world: FileWorld) -> None:
    """Let new processes use the restored journal."""
    world.journal.close()
    world.journal = world.journals.open(world.journals.spare_url)


def test_entries_of_files_are_verified_and_restored(world: FileWorld) -> None:
    """HDFS: a replay of the log in order, onto the image, gives the new image."""
    files = world.process()
    files.make_directory("/logs")
    world.write(files, "/logs/a.log")
    world.write(files, "/logs/b.log")
    files.truncate("/logs/a.log", 9)
    files.rename("/logs/a.log", "/a.log")
    files.delete("/logs", recursive=True)
    files.remove_deleted()

    assert world.journals.verify().findings == ()
    world.journals.checkpoint()
    world.write(files, "/c.log")
    world.journals.restore(with_entries=True)
    assert image(world, world.journals.spare_url) == image(world)


def test_a_replay_that_ends_prematurely_can_be_repeated(world: FileWorld) -> None:
    """HDFS: a replay is idempotent, also after aborted ones; the last record of a file counts."""
    files = world.process(block_bytes=100)
    world.write(files, "/a.log", b"one")
    world.journals.checkpoint()
    for _ in range(2):
        with files.append("/a.log") as writer:
            writer.write(b"two")
    world.leave_open("/b.log", TEXT, block_bytes=8)
    for doubled in itertools.count():
        with dying_at(2**doubled) as passed:
            world.journals.restore(with_entries=True)
        if len(passed) < 2**doubled:
            break
    assert doubled > 2
    assert image(world, world.journals.spare_url) == image(world)
    continue_restored(world)
    assert world.read() == b"onetwotwo"
    assert world.process().open("/b.log").read() == TEXT


def test_open_files_are_in_a_checkpoint_and_are_recovered_after_safe_mode(world: FileWorld) -> None:
    """HDFS: open files keep leases that do not expire in safe mode, and have the hard limit after it."""
    world.leave_open("/a.log", TEXT, block_bytes=8)
    world.write(world.process(), "/deleted.log")
    world.process().delete("/deleted.log")
    world.journals.checkpoint()
    world.journals.restore()
    continue_restored(world)
    files = world.process()
    assert files.status("/a.log").is_open
    assert files.open("/a.log").read() == TEXT  # reads do not wait for safe mode
    world.lapse()
    for refused in (lambda: files.recover("/a.log"), files.remove_deleted):
        with pytest.raises(SafeModeError):
            refused()

    assert leave_safe_mode(world.journal) is not None
    assert world.lapse() == [120]  # the hard limit
    assert world.recover() == []
    assert files.open("/a.log").read() == TEXT
    assert files.remove_deleted().kept_blocks == 0


def test_a_client_continues_after_the_journal_was_away_longer_than_its_lease(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS: clients go on. Here a recovery waits for the hard limit after its own first look."""
    files = world.process()
    writer = world.begin(TEXT[:5], files)
    with world.without_journal():
        world.clock.sleep(10_000)
        writer.write(TEXT[5:7])
        writer.flush()
    sleep = world.clock.sleep

    def renew(seconds: float) -> None:
        files.renewer.renew()
        sleep(seconds)

    monkeypatch.setattr(world.clock, "sleep", renew)
    assert world.process().recovery.recover_lapsed() == []
    monkeypatch.undo()
    writer.write(TEXT[7:])
    writer.close()
    assert world.read() == TEXT


def test_safe_mode_lasts_until_blocks_have_reported(world: FileWorld) -> None:
    """HDFS: until one copy of most blocks has reported. Here deletions and copies wait, and reads do not."""
    for name in world.names:
        world.journal.apply(RegisterVolume(volume=name, url=f"https://{name}.example"))
    files = world.process()
    world.write(files, "/a.log")
    world.write(files, "/b.log")
    files.delete("/b.log")
    with world.without(*world.names), pytest.raises(SafeModeError, match="have no replica that has reported"):
        files.remove_deleted()
    with world.without(*world.names[1:]):
        assert files.remove_deleted().kept_blocks == 3  # one copy of each has reported
        assert files.open("/a.log").read() == TEXT
    assert files.remove_deleted().kept_blocks == 0


def test_a_checkpoint_is_taken_beside_a_writer(world: FileWorld) -> None:
    """HDFS: the secondary namenode merges image and log periodically; open files stay open."""
    writer = world.begin(TEXT[:10], block_bytes=8)
    world.journals.checkpoint()
    writer.write(TEXT[10:])
    writer.flush()
    assert world.journals.verify().findings == ()
    world.journals.restore(with_entries=True)
    assert image(world, world.journals.spare_url) == image(world)
    writer.close()
    assert world.read() == TEXT
