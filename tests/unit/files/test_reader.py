"""A reader reads ahead, because a volume checks a whole frame for each read; an error moves it nowhere."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError, MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.files.reader import AHEAD_BYTES, Reader
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.files.writing.writer import Writer
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import ManualClock
from tests.support.files.memory_blocks import MemoryBlocks, MemoryJournal
from tests.support.files.memory_volume import MemoryVolume

A, B = VolumeId("a"), VolumeId("b")
LINES = [b"%d %s\n" % (number, b"x" * (number % 900)) for number in range(4000)]
"""Some 1.8 MB."""


class CountingVolume(DirectoryVolume):
    """Counts its reads, and refuses some of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reads: list[int] = []
        self.refused: set[int] = set()

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        self.reads.append(size)
        if len(self.reads) in self.refused:
            raise StoreUnavailableError("away")
        return super().read(block, stamp, offset, size)


def write(journal: MemoryJournal, volumes: dict[VolumeId, CountingVolume], data: bytes) -> None:
    with Writer(MemoryBlocks(journal, "writer"), volumes, block_bytes=1_500_000) as writer:
        writer.write(data)


def reader_of(journal: MemoryJournal, volumes: dict[VolumeId, CountingVolume]) -> Reader:
    return Reader(lambda: tuple(journal.rows.values()), volumes, clock=ManualClock())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[CountingVolume, Reader]]:
    journal = MemoryJournal((A,))
    with CountingVolume(tmp_path / "a") as volume:
        write(journal, {A: volume}, b"".join(LINES))
        yield volume, reader_of(journal, {A: volume})


def test_lines_are_read_with_few_reads_of_the_volume(scene: tuple[CountingVolume, Reader]) -> None:
    volume, reader = scene

    assert list(reader) == LINES

    assert len(volume.reads) == 3  # the rest of each of two blocks is less than what is read ahead


def test_a_whole_file_is_read_with_few_reads_of_the_volume(scene: tuple[CountingVolume, Reader]) -> None:
    volume, reader = scene

    assert reader.read() == b"".join(LINES)

    assert volume.reads == [1_500_000, len(b"".join(LINES)) - 1_500_000]


def test_what_was_read_ahead_is_not_returned_after_a_seek(scene: tuple[CountingVolume, Reader]) -> None:
    _, reader = scene
    whole = b"".join(LINES)

    for at in (0, 10, AHEAD_BYTES - 2, AHEAD_BYTES, 1_499_999, 5, len(whole) - 1):
        reader.seek(at)
        assert reader.peek() == whole[at : at + len(reader.peek())] != b""
        assert reader.read(7) == whole[at : at + 7]
        assert reader.tell() == min(at + 7, len(whole))


@pytest.mark.parametrize("size", [-1, 100, AHEAD_BYTES])
def test_a_read_that_fails_leaves_the_position(scene: tuple[CountingVolume, Reader], size: int) -> None:
    volume, reader = scene
    reader.seek(500_000)
    volume.refused = {2, 3, 4} if size < 0 else {1, 2, 3}

    with pytest.raises(StoreUnavailableError, match="away"):
        reader.read(size)

    assert reader.tell() == 500_000
    assert reader.read(3) == b"".join(LINES)[500_000:500_003]


def test_bytes_that_were_flushed_later_are_read_behind_those_read_ahead() -> None:
    journal, volumes = MemoryJournal((A,)), {A: MemoryVolume()}
    writer = Writer(MemoryBlocks(journal, "writer"), volumes)
    writer.write(b"one two")
    writer.flush()
    reader = Reader(lambda: tuple(journal.rows.values()), volumes, clock=ManualClock())
    assert reader.read(4) == b"one "

    writer.write(b" three")
    writer.flush()

    assert reader.read(100) == b"two three"
    assert reader.read(100) == b""
    writer.close()


def test_what_a_reader_has_seen_of_a_stamp_does_not_become_shorter() -> None:
    journal, volumes = MemoryJournal((A, B)), {A: MemoryVolume(), B: MemoryVolume()}
    writer = Writer(MemoryBlocks(journal, "writer"), volumes)
    for _ in range(2):
        writer.write(b"one")
        writer.flush()
    reader = Reader(lambda: tuple(journal.rows.values()), volumes, clock=ManualClock())
    assert reader.read() == b"oneone"
    (row,) = journal.rows.values()
    for volume in volumes.values():
        volume.stored[row.block].acknowledged = 0
    volumes[A].lose(row.block, 4, is_shown=False)

    assert reader.seek(0, io.SEEK_END) == 6
    assert reader.seek(0) == 0
    assert reader.read() == b"oneone"


def test_an_error_of_a_damaged_file_names_path_block_volumes_and_what_is_wrong() -> None:
    journal, volumes = MemoryJournal((A, B)), {A: MemoryVolume(), B: MemoryVolume()}
    with Writer(MemoryBlocks(journal, "writer"), volumes) as writer:
        writer.write(b"one")
    reader = Reader(lambda: tuple(journal.rows.values()), volumes, path="/a.log", clock=ManualClock())
    (row,) = journal.rows.values()
    volumes[A].lose(row.block, 1, is_shown=True)
    assert reader.read() == b"one"
    volumes[B].lose(row.block, None, is_shown=True)

    said = r"/a\.log: no volume serves byte 0 \(block 1, byte 0\): volume a: .*damaged at 1; volume b: "
    with pytest.raises(MalformedRecordError, match=said):
        Reader(reader._records, volumes, path="/a.log", clock=ManualClock()).read()


def test_a_reader_refuses_what_the_standard_librarys_readers_refuse(
    scene: tuple[CountingVolume, Reader],
) -> None:
    _, reader = scene
    with pytest.raises(io.UnsupportedOperation):
        reader.write(b"x")
    for call in (lambda: reader.seek(1.5), lambda: reader.read(1.5)):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            call()
    with pytest.raises(InvalidInputError, match="whence is 0, 1 or 2"):
        reader.seek(0, 5)
    with pytest.raises(InvalidInputError, match="not negative"):
        reader.seek(-1)
    assert reader.tell() == 0
    for copied in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copied(reader)
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read(0)
