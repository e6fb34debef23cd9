"""Deleted files are removed in batches; a removal that died is continued."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    ObjectNotFoundError,
    SafeModeError,
)
from lockgate.storage_core.files.namespace.rows import ROOT, Block, File, Inode, Member
from lockgate.storage_core.files.namespace.tree import DetachNames, RemoveBlocks
from lockgate.storage_core.files.removal import Removed
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.safe_mode import add_operators_reason
from tests.support.commit.destination import crash_at
from tests.support.files.file_world import FileWorld


def test_nothing_is_removed_in_safe_mode(world: FileWorld) -> None:
    files = world.process()
    world.write(files, "/a.log", b"one")
    (block,) = world.rows(Block)
    files.delete("/a.log")
    add_operators_reason(world.journal, "test")
    with pytest.raises(SafeModeError, match="test"):
        files.remove_deleted()
    with pytest.raises(SafeModeError):
        world.journal.apply(RemoveBlocks(blocks=(block.block,)))
    assert files.remove_deleted(dry_run=True).blocks == 1
    assert len(world.rows(Block)) == 1


def test_a_directory_of_any_size_is_deleted_in_one_entry_and_removed_in_batches(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("namespace.queries", "removal"):
        monkeypatch.setattr(f"lockgate.storage_core.files.{module}.PAGE", 3)
    files = world.process()
    files.make_directory("/logs/deep", parents=True)
    for number in range(7):
        world.write(files, f"/logs/{number}.log")
        world.write(files, f"/logs/deep/{number}.log", b"x")
    with pytest.raises(ConflictError, match="not empty"):
        files.delete("/logs")
    before = world.journal.status().stamp.sequence
    files.delete("/logs", recursive=True)
    assert world.journal.status().stamp.sequence == before + 1
    assert files.list("/") == []
    with pytest.raises(ObjectNotFoundError):
        files.create("/logs/deep/late.log")

    removed = files.remove_deleted()
    assert (removed.files, removed.kept_blocks) == (16, 0)
    assert [world.rows(kind) for kind in (Inode, File, Block, Member, Lease)] == [[], [], [], [], []]


def test_a_removal_that_dies_at_any_step_is_continued(world: FileWorld) -> None:
    for die_at in itertools.count():
        files = world.process()
        files.make_directory("/logs")
        world.write(files, "/logs/a.log")
        files.delete("/logs", recursive=True)
        died = crash_at(die_at, files.remove_deleted)
        files.remove_deleted()
        assert world.rows(Inode) == world.rows(Block) == world.rows(Member) == []
        if died is None:
            assert die_at > 8
            return


def test_two_removals_at_once_both_succeed_and_count_each_block_once(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = world.process()
    apply = world.journal.apply
    for other_at in itertools.count():
        files.make_directory("/logs/deep", parents=True)
        for path in ("/logs/a.log", "/logs/deep/b.log", "/c.log"):
            world.write(files, path, b"x")
        files.delete("/logs", recursive=True)
        files.delete("/c.log")
        entries = itertools.count()
        done: list[Removed] = []

        def after_another_removal(
            op: Op, other_at: int = other_at, entries: Iterator[int] = entries, done: list[Removed] = done
        ) -> object:
            if next(entries) == other_at:
                done.append(files.remove_deleted())
            return apply(op)

        with monkeypatch.context() as patch:
            patch.setattr(world.journal, "apply", after_another_removal)
            done.append(files.remove_deleted())
        assert sum(one.blocks for one in done) == 3
        assert world.rows(Inode) == world.rows(Block) == []
        if len(done) == 1:
            assert other_at > 4
            return


def test_names_of_a_directory_that_was_not_deleted_stay(world: FileWorld) -> None:
    files = world.process()
    files.make_directory("/logs")
    made = files.status("/logs").inode
    world.write(files, "/logs/a.log")
    for inode, name in ((made, "a.log"), (ROOT, "logs")):
        with pytest.raises(ConflictError, match=f"{inode} was not deleted"):
            world.journal.apply(DetachNames(inode=inode, names=(name,)))
