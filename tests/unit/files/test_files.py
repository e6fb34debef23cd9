"""Calls of `Files` that are refused, and writers that are overtaken at odd moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lockgate.storage_core.errors import (
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from lockgate.storage_core.files import files as files_module
from lockgate.storage_core.files.blocks import BlockRecord
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks
from lockgate.storage_core.files.writing import writer as writer_module
from lockgate.storage_core.files.writing.writer import FileWriter
from tests.support.files.file_world import TEXT, FileWorld, at


def test_a_file_without_reachable_volumes_is_an_error(world: FileWorld) -> None:
    files = world.process()
    world.volumes.clear()
    with pytest.raises(StoreUnavailableError, match="no volume of appendable files can be reached"):
        files.create("/a.log").write(b"x" * 9)


@pytest.mark.parametrize("length", [5.0, 0.5, "5", None])
def test_a_length_that_is_no_whole_number_is_refused(world: FileWorld, length: Any) -> None:
    files = world.process()
    world.write(files, "/a.log")
    before = world.entries()
    with pytest.raises(InvalidInputError, match="no number of bytes; nothing was changed"):
        files.truncate("/a.log", length)
    assert world.entries() == before
    files.truncate("/a.log", np.int64(5))
    assert files.open("/a.log").read() == TEXT[:5]
    truthy: Any = 1
    files.delete("/a.log", recursive=truthy)
    assert world.journals.verify().findings == ()


def test_a_renewal_between_the_end_of_the_lease_and_that_of_the_writer_is_no_error(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = world.process()
    close = JournalBlocks.close

    def close_and_renew(blocks: JournalBlocks, last: BlockRecord | None = None) -> None:
        close(blocks, last)
        files.renewer.renew()  # by its thread, which finds that the lease does not exist any more

    monkeypatch.setattr(JournalBlocks, "close", close_and_renew)
    world.write(files, "/a.log")

    assert files.open("/a.log").read() == TEXT
    assert not files.status("/a.log").is_open
    with files.append("/a.log") as writer:
        writer.write(b"more")
    assert files.open("/a.log").read() == TEXT + b"more"


def test_an_append_opens_a_short_last_block_and_leaves_a_long_one_as_it_is(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fence copies what a block has."""
    for module in (files_module, writer_module):
        monkeypatch.setattr(module, "REOPENED_BYTES", 6)
    files = world.process(block_bytes=100)
    world.write(files, "/a.log", b"")
    for lengths in ([4], [8], [8, 4], [8, 8], [8, 8, 4]):
        with files.append("/a.log") as writer:
            writer.write(b"four")
        assert [one.length_bytes for one in world.records("/a.log")] == lengths
    assert files.open("/a.log").read() == b"four" * 5


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_writer_that_is_paused_before_its_block_has_replicas_acknowledges_nothing(
    world: FileWorld, is_deleted: bool
) -> None:
    writer = world.process().create("/a.log")

    def take_over() -> None:
        if is_deleted:
            world.files.delete("/a.log")
        else:
            with FileWriter(world.take("/a.log", "new"), world.volumes) as new:
                new.write(b"new")

    with at("pipeline.create.before", take_over):
        writer.write(b"old")
    for _ in range(2):
        with pytest.raises(FencedError):
            writer.flush()
    assert is_deleted or world.files.open("/a.log").read() == b"new"


def test_a_truncate_that_ends_leaves_the_lease_of_the_next_writer_of_its_process(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = world.process()
    world.write(files, "/a.log")
    close, opened = JournalBlocks.close, []

    def close_and_open(blocks: JournalBlocks, last: BlockRecord | None = None) -> None:
        close(blocks, last)
        monkeypatch.undo()
        opened.append(files.append("/a.log"))

    monkeypatch.setattr(JournalBlocks, "close", close_and_open)
    files.truncate("/a.log", 5)
    with opened[0] as writer:
        writer.write(b"more")
        writer.flush()
    assert files.open("/a.log").read() == TEXT[:5] + b"more"
