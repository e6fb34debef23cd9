"""HDFS Append and Truncates, section "The Reader": stamps with every read, and its cases 1 to 5."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import StaleReplicaError, StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files import reader as reader_module
from tests.support.files.file_world import TEXT, FileWorld


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers read no byte ahead, so that each read is a request to a volume."""
    monkeypatch.setattr(reader_module, "AHEAD_BYTES", 1)


def test_a_reader_tries_other_members_and_then_fetches_the_locations_again(world: FileWorld) -> None:
    """HDFS: a datanode with another stamp refuses; the client fails over, then fetches the locations."""
    files = world.process(block_bytes=100)
    world.write(files, "/a.log", b"abcdef")
    (before,) = world.records("/a.log")
    reader = world.process().open("/a.log")
    for _ in range(2):  # the log of its stamp is deleted by the second fence
        with files.append("/a.log") as writer:
            writer.write(b"more")
    (after,) = world.records("/a.log")
    assert reader.read(3) == b"abc"

    reads = [
        (name, stamp, isinstance(error, StaleReplicaError))
        for name, volume in world.opened.items()
        for call, (_, stamp, *_), error in volume.calls
        if call == "read"
    ]
    refused = [(name, stamp) for name, stamp, is_refused in reads if is_refused]
    assert refused == [(name, before.stamp) for name in before.members]
    assert [stamp for _, stamp, is_refused in reads if not is_refused] == [after.stamp]


def test_case_1_no_writer(world: FileWorld) -> None:
    """HDFS: without a writer a new reader reads the whole file. Here from each replica alone."""
    world.write(world.process(), "/a.log")
    for name in world.names:
        with world.without(*(one for one in world.names if one != name)):
            assert world.read() == TEXT


def test_case_2_a_new_reader_of_a_file_that_is_written_sees_the_same_bytes_on_each_member(
    world: FileWorld,
) -> None:
    """HDFS: it reads the primary datanode only. Here any member, up to the shortest one's durable length."""
    world.begin(b"abcdef")
    (record,) = world.records("/a.log")
    for name, more in zip(world.names, (b"", b"g", b"gh"), strict=True):
        if more:  # as when the writer dies in the middle of a flush
            world.volumes[name].append(record.block, record.stamp, 6, more)
            world.volumes[name].flush(record.block, record.stamp)
    reader = world.process().open("/a.log")
    got = b""
    for number in range(6):
        with world.without(world.names[number % 3]):
            got += reader.read(1)
    assert got == b"abcdef"
    assert reader.read() == b""


def test_case_3_a_writer_opens_a_file_whose_locations_a_reader_has(world: FileWorld) -> None:
    """HDFS: the reader is refused at its old stamp and goes on as in case 2."""
    world.write(world.process(block_bytes=100), "/a.log", TEXT)
    reader = world.process().open("/a.log")
    assert reader.read(5) == TEXT[:5]
    writer = world.process(block_bytes=100).append("/a.log")
    assert reader.read(5) == TEXT[5:10]
    writer.write(b"more")
    assert reader.read() == TEXT[10:]
    writer.flush()
    assert reader.read() == b"more"
    writer.close()


def test_case_3_a_reader_that_reaches_only_a_replica_that_missed_the_append_gets_an_error(
    world: FileWorld,
) -> None:
    """HDFS: data of a stale replica is never served. Here a reader with old locations is refused as well."""
    world.write(world.process(block_bytes=100), "/a.log", b"abc")
    with world.without(world.names[0]):
        writer = world.process(block_bytes=100).append("/a.log")
        writer.write(b"def")
        writer.flush()
    with world.without(*world.names[1:]), pytest.raises(StoreUnavailableError):
        world.process().open("/a.log")
    writer.close()


def test_case_4_a_truncate_of_a_file_whose_locations_a_reader_has(world: FileWorld) -> None:
    """HDFS: as case 3: the reader is refused at its old stamp, and sees the new end."""
    files = world.process(block_bytes=100)
    world.write(files, "/a.log", TEXT)
    reader = world.process().open("/a.log")
    assert reader.read(3) == TEXT[:3]
    files.truncate("/a.log", 7)
    assert reader.read(2) == TEXT[3:5]
    assert reader.read() == TEXT[5:7]
    assert reader.read() == b""


def test_case_4_blocks_that_are_cut_off_whole_are_served_to_old_readers_until_they_are_removed(
    world: FileWorld,
) -> None:
    """HDFS: such blocks are discarded at once. Here an old reader reads them whole, then sees the new end."""
    files = world.process(block_bytes=8)
    world.write(files, "/a.log", TEXT)
    early, late = files.open("/a.log"), files.open("/a.log")
    files.truncate("/a.log", 8)
    assert early.seek(16) == late.seek(16) == 16
    assert early.read() == TEXT[16:]
    assert files.remove_deleted().blocks == 2
    assert late.read() == b""
    assert late.seek(0) == 0
    assert late.read() == TEXT[:8]


@pytest.mark.parametrize("length", [0, 5, 8, 12])
def test_case_5_a_reader_that_arrives_after_a_truncate_sees_the_new_size(
    world: FileWorld, length: int
) -> None:
    """HDFS: it sees the new size. Here, during the truncate, the old one, then the new one or an error."""
    files = world.process()
    world.write(files, "/a.log")
    found: list[bytes | None] = []

    def arrive(point: str) -> None:
        FAILPOINTS.observer = None
        try:
            found.append(world.read())
        except StoreUnavailableError:
            found.append(None)
        finally:
            FAILPOINTS.observer = arrive

    FAILPOINTS.observer = arrive
    files.truncate("/a.log", length)
    FAILPOINTS.observer = None

    assert world.read() == TEXT[:length]
    seen = list(_changes(found))
    assert seen[:2] == [TEXT, TEXT[:length]]
    assert seen[2:] in ([], [None, TEXT[:length]])


def _changes(found: list[bytes | None]) -> Iterator[bytes | None]:
    before: object = ...
    for one in found:
        if one != before:
            yield one
        before = one
