"""HDFS Append and Truncates, section "File Deletions and Renames": of files with a writer and readers."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import (
    FencedError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import Block, File, Inode, Member
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.settings import load_settings
from tests.support.files.file_world import TEXT, FileWorld, at


def test_an_open_file_that_is_renamed_keeps_its_writer_and_gets_its_next_blocks(world: FileWorld) -> None:
    """HDFS: the writer gets an error at its next block. Here it goes on: blocks and lease name no path."""
    files = world.process()
    for _ in range(2):
        files.make_directory("/old/deep", parents=True)
    writer = files.create("/old/deep/a.log")
    writer.write(TEXT[:5])
    writer.flush()
    before, leases = world.journal.status().stamp.sequence, world.leases()
    world.process().rename("/old", "/new")

    assert world.journal.status().stamp.sequence == before + 1
    assert world.leases() == leases
    writer.write(TEXT[5:])
    writer.close()
    assert files.status("/new/deep/a.log").blocks == 3
    assert files.open("/new/deep/a.log").read() == TEXT
    with pytest.raises(ObjectNotFoundError, match="the directory /old does not exist"):
        files.status("/old/deep/a.log")


def test_the_writer_of_a_deleted_file_is_fenced_and_nothing_of_it_remains(world: FileWorld) -> None:
    """HDFS: the writer may get an error when it writes more. Here it does, after the delete has returned."""
    files = world.process()
    writer = world.begin(b"one", files)
    world.process().delete("/a.log")

    writer.write(b"two")
    with pytest.raises(FencedError):
        writer.flush()
    with pytest.raises(FencedError):
        writer.close()
    assert files.remove_deleted(dry_run=True).blocks == 1
    removed = files.remove_deleted()
    assert (removed.files, removed.blocks, removed.kept_blocks) == (1, 1, 0)
    assert [world.rows(kind) for kind in (Inode, File, Block, Member, Lease)] == [[], [], [], [], []]
    assert [volume.replicas(None, 10) for volume in world.volumes.values()] == [(), (), ()]


def test_a_rename_over_a_file_replaces_it_in_one_entry_and_fences_its_writer(world: FileWorld) -> None:
    """HDFS: a rename may overwrite its target, whose blocks are removed as those of a deleted file."""
    files = world.process()
    world.write(files, "/new", b"new")
    writer = world.begin(b"old", block_bytes=8)
    before = len(world.entries())
    files.rename("/new", "/a.log", replace=True)
    assert world.entries()[before:] == ["rename"]
    writer.write(b"late")
    with pytest.raises(FencedError):
        writer.flush()
    assert [one.name for one in files.list("/")] == ["a.log"]
    assert files.open("/a.log").read() == b"new"
    assert files.remove_deleted().files == 1


def test_the_writer_of_a_deleted_file_is_fenced_by_its_renewal_if_no_member_is_reached(
    world: FileWorld,
) -> None:
    """HDFS: the writer may get an error. Here at its next renewal, if the delete has reached no member."""
    files = world.process(block_bytes=100)
    writer = world.begin(b"one", files)
    Files(world.journal, {}, load_settings()).delete("/a.log")
    writer.write(b"two")
    writer.flush()  # its members know nothing of it yet
    files.renewer.renew()

    writer.write(b"three")
    with pytest.raises(FencedError, match="does not exist any more"):
        writer.flush()


def test_a_file_is_deleted_below_its_readers_and_its_blocks_lazily(world: FileWorld) -> None:
    """HDFS: the name goes at once, the blocks later. Here a reader that is open goes on until then."""
    files = world.process()
    world.write(files, "/a.log")
    early, late = files.open("/a.log"), files.open("/a.log")
    files.delete("/a.log")
    with pytest.raises(ObjectNotFoundError):
        files.open("/a.log")
    assert early.read() == TEXT
    world.write(files, "/a.log", b"another")  # the name is free
    assert files.remove_deleted().blocks == 3
    with pytest.raises(ObjectNotFoundError, match="was deleted"):
        late.read()
    assert files.open("/a.log").read() == b"another"


def test_a_reader_of_a_file_that_is_removed_in_part_gets_an_error_and_no_other_bytes(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS: the blocks go lazily. Here a reader with old locations never takes one block for another."""
    monkeypatch.setattr("lockgate.storage_core.files.removal.PAGE", 1)
    files = world.process()
    world.write(files, "/a.log")
    reader = files.open("/a.log")
    files.delete("/a.log")

    with at("removal.replicas.after", world.volumes.clear):
        assert files.remove_deleted().kept_blocks == 2
    world.volumes.update(world.opened)
    with pytest.raises(ObjectNotFoundError, match="was deleted"):
        reader.read()
    assert reader.tell() == 0


def test_the_writer_of_a_deleted_file_gets_no_further_block(world: FileWorld) -> None:
    """HDFS: a writer may get an error when it asks for a block. Here no member was reached by the delete."""
    writer = world.begin(TEXT[:5], block_bytes=8)
    Files(world.journal, {}, load_settings()).delete("/a.log")
    with pytest.raises(FencedError):
        writer.write(TEXT[5:])
    assert len(world.rows(Block)) == 1


def test_a_deleted_file_has_no_lease_and_needs_no_recovery(world: FileWorld) -> None:
    """HDFS: the lease record is deleted; lease recovery is not necessary."""
    world.leave_open("/a.log", b"one")
    assert len(world.leases()) == 1
    files = world.process()
    files.delete("/a.log")
    assert world.leases() == []
    world.clock.sleep(200)
    assert files.recovery.recover_lapsed() == []
    assert files.remove_deleted().kept_blocks == 0


def test_the_writer_in_a_deleted_directory_is_fenced_by_the_removal(world: FileWorld) -> None:
    """HDFS: a delete ends leases. Here that of a directory is one entry, and the removal ends them."""
    files = world.process()
    files.make_directory("/logs")
    writer = files.create("/logs/a.log")
    writer.write(b"one")
    writer.flush()
    files.delete("/logs", recursive=True)
    assert files.remove_deleted().kept_blocks == 0
    assert world.leases() == []
    writer.write(b"two")
    with pytest.raises((FencedError, ObjectNotFoundError, StoreUnavailableError)):
        writer.flush()
    assert [volume.replicas(None, 10) for volume in world.volumes.values()] == [(), (), ()]
