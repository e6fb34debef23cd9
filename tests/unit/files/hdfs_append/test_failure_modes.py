"""HDFS Append and Truncates, section "Failure Modes and Recovery": any one of four failures, or several.

The namenode is the journal here, a datanode is a volume.
"""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import JournalUnavailableError, OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.files.files import FileWriter
from lockgate.storage_core.files.namespace.file_blocks import AddBlock, CloseFile, CommitBlock, StampBlock
from lockgate.storage_core.journal.entries.op import Op
from tests.support.commit.destination import crash_at
from tests.support.files.file_world import FileWorld

POINTS = ["create.before", "create.after", "flush.before", "member-flush.before", "finish.before"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("hit", [0, 1])
def test_the_client_dies_while_writing_to_a_block(world: FileWorld, point: str, hit: int) -> None:
    """HDFS: the system recovers from a client that dies while it writes to a block."""
    files = world.process()
    flushed = written = b""

    def write() -> None:
        nonlocal flushed, written
        writer = files.create("/a.log")
        for piece in (b"abc", b"defghij", b"klmnopqrst"):
            written += piece
            writer.write(piece)
            writer.flush()
            flushed = written

    assert crash_at(hit, write, f"pipeline.{point}")
    files.close()

    assert world.recover() == []
    found = world.read()
    assert found[: len(flushed)] == flushed
    assert written[: len(found)] == found
    world.check_sealed("/a.log", found)


@pytest.mark.parametrize("dead", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_a_datanode_in_the_pipeline_dies_while_data_is_streamed(
    world: FileWorld, dead: tuple[int, ...]
) -> None:
    """HDFS: any datanode of the pipeline may die. Here also all but one: each has all flushed bytes."""
    gone = [world.names[number] for number in dead]
    writer = world.begin(b"one")
    with world.without(*gone):
        writer.write(b"two")
        writer.flush()
        assert world.read() == b"onetwo"
        writer.write(b"three")
        writer.close()

    (record,) = world.records("/a.log")
    assert set(record.members) == set(world.names) - set(gone)
    world.check_sealed("/a.log", b"onetwothree")


def write_on(writer: FileWriter, data: bytes) -> None:
    """Write bytes, of which an earlier call may have taken some."""
    writer.write(data[writer.tell() :])
    writer.flush()


def test_the_namenode_dies_while_a_client_is_writing_to_a_block(world: FileWorld) -> None:
    """HDFS: the client goes on when the namenode is back. Here flushes within a block need no journal."""
    data = b"abcdefghijklmnopqrst"
    writer = world.process().create("/a.log")
    write_on(writer, data[:3])
    with world.without_journal():
        write_on(writer, data[:8])
        with pytest.raises(JournalUnavailableError):
            write_on(writer, data)  # its next block is an entry
    write_on(writer, data)
    writer.close()
    world.check_sealed("/a.log", data)


def test_the_namenode_needs_several_attempts_to_restart(world: FileWorld) -> None:
    """HDFS: several restarts may fail before one succeeds. Here the journal goes between any two calls."""
    data = bytes(range(60))
    writer = world.process().create("/a.log")
    refused = 0
    for length in range(0, 60, 5):
        with world.without_journal():
            try:
                write_on(writer, data[:length])
            except JournalUnavailableError:
                refused += 1
        write_on(writer, data[: length + 1])
        assert world.read() == data[: length + 1]
    assert refused >= 3
    writer.close()
    world.check_sealed("/a.log", data[:56])


@pytest.mark.parametrize("kind", [AddBlock, StampBlock, CommitBlock])
def test_the_namenode_dies_before_it_answers_a_writer(world: FileWorld, kind: type[Op]) -> None:
    """HDFS: the namenode dies while a client is writing. Here its entry is there, and the answer is lost."""
    data = b"abcdefghijklmnopqrst"
    writer = world.process().create("/a.log")
    write_on(writer, data[:3])
    with world.losing_answers(kind), world.without(world.names[1]):
        for _ in range(2):
            try:
                write_on(writer, data)
            except OutcomeUnknownError:
                continue
    assert writer.tell() == len(data)
    writer.close()
    world.check_sealed("/a.log", data)


def test_the_namenode_dies_before_it_answers_a_close(world: FileWorld) -> None:
    """HDFS: as before. Here the close is asked for again, and nothing is left to recover."""
    writer = world.process().create("/a.log")
    write_on(writer, b"abc")
    with world.losing_answers(CloseFile):
        writer.close()
    assert world.recover() == []
    world.check_sealed("/a.log", b"abc")


def test_all_failures_together(world: FileWorld) -> None:
    """HDFS: the design recovers from one or several of the failures."""
    data = b"abcdefghijklmnopqrst"
    files = world.process()
    writer = files.create("/a.log")
    write_on(writer, data[:3])
    with world.without(world.names[0]):
        write_on(writer, data[:7])
        with world.without_journal(), pytest.raises((JournalUnavailableError, StoreUnavailableError)):
            write_on(writer, data)
        files.close()  # the client dies too
        world.restart_journal()
        world.restart_volumes()
    assert world.recover() == []
    found = world.read()
    assert found[:7] == data[:7]
    assert found == data[: len(found)]
    world.check_sealed("/a.log", found)
