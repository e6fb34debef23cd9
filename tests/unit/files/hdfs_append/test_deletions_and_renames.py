"""HDFS Append and Truncates, section "File Deletions and Renames"."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import (
    FencedError,
    ObjectNotFoundError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import Block, File, Inode, Member
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.settings import Settings
from tests.support.files.file_world import FileWorld


def test_an_open_file_that_is_renamed_keeps_its_writer(world: FileWorld) -> None:
    files = world.process()
    files.make_directory("/old/deep", parents=True)
    files.make_directory("/old/deep", parents=True)
    writer = files.create("/old/deep/a.log")
    writer.write(b"one")
    before = world.journal.status().stamp.sequence
    files.rename("/old", "/new")

    assert world.journal.status().stamp.sequence == before + 1
    writer.write(b"two")
    writer.close()
    assert files.open("/new/deep/a.log").read() == b"onetwo"
    with pytest.raises(ObjectNotFoundError, match="the directory /old does not exist"):
        files.status("/old/deep/a.log")


def test_the_writer_of_a_deleted_file_is_fenced_and_nothing_of_it_remains(world: FileWorld) -> None:
    files = world.process()
    writer = files.create("/a.log")
    writer.write(b"one")
    writer.flush()
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
    assert not [path for folder in world.folders for path in folder.glob("*.log")]


def test_the_writer_of_a_deleted_file_is_fenced_by_its_renewal_if_no_member_is_reached(
    world: FileWorld,
) -> None:
    files = world.process(block_bytes=100)
    writer = files.create("/a.log")
    writer.write(b"one")
    writer.flush()
    Files(world.journal, {}, Settings()).delete("/a.log")
    writer.write(b"two")
    writer.flush()  # its members know nothing of it yet
    files._renewer.renew()

    writer.write(b"three")
    with pytest.raises(FencedError, match="does not exist any more"):
        writer.flush()
