"""HDFS Append and Truncates, section "Requirements": what a writer and its readers may rely on."""

from __future__ import annotations

from collections import Counter

import pytest

from lockgate.storage_core.errors import AlreadyExistsError, LeaseHeldError, StoreUnavailableError
from tests.support.files.file_world import TEXT, FileWorld


def test_a_file_has_one_writer(world: FileWorld) -> None:
    """HDFS: a file has at most one writer: the client that creates it, appends to it or truncates it."""
    writer = world.process().create("/a.log")

    with pytest.raises(LeaseHeldError):
        world.process().append("/a.log")
    with pytest.raises(LeaseHeldError):
        world.process().truncate("/a.log", 0)
    with pytest.raises(AlreadyExistsError, match=r"/a\.log is a file already"):
        world.process().create("/a.log")
    writer.close()


def test_a_writer_and_many_readers_use_a_file_at_once(world: FileWorld) -> None:
    """HDFS: many readers read what one writer is writing."""
    writer = world.process().create("/a.log")
    readers = [world.process().open("/a.log") for _ in range(3)]
    got = [b""] * 3
    for number in range(12):
        writer.write(b"%d," % number)
        writer.flush()
        at = number % 3
        got[at] += readers[at].read()
        assert got[at] == b"".join(b"%d," % one for one in range(number + 1))
    writer.close()
    assert {before + reader.read() for before, reader in zip(got, readers, strict=True)} == {
        b"0,1,2,3,4,5,6,7,8,9,10,11,"
    }


def test_data_is_not_seen_before_it_is_persisted(world: FileWorld) -> None:
    """HDFS: data may be seen before it is persisted. Here only durable bytes are served."""
    writer = world.begin(b"one", block_bytes=8)
    (record,) = world.records("/a.log")
    for volume in world.volumes.values():
        volume.append(record.block, record.stamp, 3, b"two")  # received, and not durable
    assert world.read() == b"one"
    writer.write(b"two")
    writer.close()
    assert world.read() == b"onetwo"


def test_a_flush_guarantees_that_data_and_metadata_are_persisted(world: FileWorld) -> None:
    """HDFS: what was flushed survives a crash of the system. Here of writer, journal and volumes at once."""
    world.leave_open("/a.log", TEXT, block_bytes=8)
    world.restart_journal()
    world.restart_volumes()
    assert world.read() == TEXT
    assert world.recover() == []
    assert world.read() == TEXT


def test_a_writer_flushes_a_few_bytes_often_without_undue_load(world: FileWorld) -> None:
    """HDFS: flushes of a few bytes may be frequent. Here each is three calls a member, and no entry."""
    writer = world.begin(b"x", block_bytes=1000)
    for volume in world.opened.values():
        volume.calls.clear()
    before = world.journal.status().stamp
    for _ in range(50):
        writer.write(b"yz")
        writer.flush()

    for volume in world.opened.values():
        calls = Counter(name for name, *_ in volume.calls)
        assert calls == {"append": 50, "flush": 50, "acknowledge": 50}
    assert world.journal.status().stamp == before
    writer.close()


def test_a_reader_that_opens_after_a_flush_reads_all_that_was_flushed(world: FileWorld) -> None:
    """HDFS: a reader is guaranteed to read what was flushed before it opened the file, from any replica."""
    writer = world.process().create("/a.log")
    for length in range(1, len(TEXT) + 1):
        writer.write(TEXT[length - 1 : length])
        writer.flush()
        with world.without(world.names[length % 3], world.names[(length + 1) % 3]):
            assert world.read() == TEXT[:length]
    writer.close()


@pytest.mark.parametrize("is_closed", [False, True])
def test_flushed_data_that_cannot_be_had_is_an_error(world: FileWorld, is_closed: bool) -> None:
    """HDFS: data is never lost silently: a new reader gets an error while no replica can be reached."""
    writer = world.begin(b"one")
    if is_closed:
        writer.close()
    with world.without(*world.names), pytest.raises(StoreUnavailableError):
        world.read()
    assert world.read() == b"one"
    writer.close()
