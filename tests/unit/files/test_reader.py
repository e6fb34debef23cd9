"""A reader reads ahead, because a volume checks a whole frame for each read; an error moves it nowhere."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

from lockgate.storage_core.errors import InvalidInputError, MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.files.reader import AHEAD_BYTES, Reader
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from tests.support.files.file_world import NAMES, TEXT, FileWorld

LINES = [b"%d %s\n" % (number, b"x" * (number % 900)) for number in range(4000)]
WHOLE = b"".join(LINES)
"""Some 1.8 MB, in two blocks."""


class Scene:
    """A reader of a file, and the sizes of the reads of its volume, of which some are refused."""

    def __init__(self, world: FileWorld, patch: pytest.MonkeyPatch) -> None:
        world.write(world.process(NAMES[0], block_bytes=1_500_000), "/a.log", WHOLE)
        self.reader: Reader = world.process().open("/a.log")
        self.reads: list[int] = []
        self.refused: set[int] = set()
        read = DirectoryVolume.read

        def counted(volume: DirectoryVolume, *arguments: Any) -> bytes:
            self.reads.append(arguments[-1])
            if len(self.reads) in self.refused:
                raise StoreUnavailableError("away")
            return read(volume, *arguments)

        patch.setattr(DirectoryVolume, "read", counted)


@pytest.fixture
def scene(world: FileWorld, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(world, monkeypatch)


def test_a_reader_looks_again_for_blocks_that_have_changed_since_they_were_found(world: FileWorld) -> None:
    writer = world.begin(b"abc")
    found = world.records("/a.log")
    writer.close()
    with world.without(*NAMES):  # no volume tells the length of what was found
        reader = Reader(lambda: world.records("/a.log"), world.volumes, found, clock=world.clock)
    assert reader.read() == b"abc"


def test_a_file_and_its_lines_are_read_with_few_reads_of_the_volume(scene: Scene) -> None:
    assert list(scene.reader) == LINES
    assert len(scene.reads) == 3  # the rest of each of two blocks is less than what is read ahead
    scene.reads.clear()
    scene.reader.seek(0)
    assert scene.reader.read() == WHOLE
    assert scene.reads == [1_500_000, len(WHOLE) - 1_500_000]


def test_what_was_read_ahead_is_not_returned_after_a_seek(scene: Scene) -> None:
    reader = scene.reader
    for at in (0, 10, AHEAD_BYTES - 2, AHEAD_BYTES, 1_499_999, 5, len(WHOLE) - 1):
        reader.seek(at)
        assert reader.peek() == WHOLE[at : at + len(reader.peek())] != b""
        assert reader.read(7) == WHOLE[at : at + 7]
        assert reader.tell() == min(at + 7, len(WHOLE))


@pytest.mark.parametrize("size", [-1, 100, AHEAD_BYTES])
def test_a_read_that_fails_leaves_the_position(scene: Scene, size: int) -> None:
    scene.reader.seek(500_000)
    scene.refused = {2, 3, 4} if size < 0 else {1, 2, 3}
    with pytest.raises(StoreUnavailableError, match="away"):
        scene.reader.read(size)
    assert scene.reader.tell() == 500_000
    assert scene.reader.read(3) == WHOLE[500_000:500_003]


def test_a_reader_seeks(world: FileWorld) -> None:
    world.write(world.files, "/a.log", b"0123456789")
    reader = io.BufferedReader(world.files.open("/a.log"))
    assert (reader.seek(-3, io.SEEK_END), reader.read()) == (7, b"789")
    assert (reader.seek(2), reader.read(3)) == (2, b"234")
    assert (reader.seek(1, io.SEEK_CUR), reader.read(1)) == (6, b"6")
    assert (reader.seek(100), reader.read()) == (100, b"")


def test_bytes_that_were_flushed_later_are_read_behind_those_read_ahead(world: FileWorld) -> None:
    with world.files.create("/a.log") as writer:
        writer.write(b"one two")
        writer.flush()
        reader = world.files.open("/a.log")
        assert reader.read(4) == b"one "
        writer.write(b" three")
        writer.flush()
        assert reader.read(100) == b"two three"
        assert reader.read(100) == b""


def test_what_a_reader_has_seen_of_a_stamp_does_not_become_shorter(world: FileWorld) -> None:
    writer = world.process(block_bytes=100).create("/a.log")
    for volume in world.opened.values():
        volume.refuses.add("acknowledge")
    for _ in range(2):
        writer.write(b"one")
        writer.flush()
    reader = world.files.open("/a.log")
    assert reader.read() == b"oneone"
    world.opened[NAMES[0]].cut(world.blocks()[0], 1)
    assert reader.seek(0, io.SEEK_END) == 6
    assert reader.seek(0) == 0
    assert reader.read() == b"oneone"


def test_an_error_of_a_damaged_file_names_path_block_volumes_and_what_is_wrong(world: FileWorld) -> None:
    one, other, third = world.opened.values()
    world.write(world.files, "/a.log", TEXT)
    first, *_ = world.blocks()
    one.flip(first, TEXT[:8])
    third.lose(first)
    assert world.files.open("/a.log").read() == TEXT
    other.flip(first, TEXT[:8])
    said = (
        rf"/a\.log: no volume serves byte 0 \(block {first}, byte 0\): volume volume-0: .*checksum.*; volume "
    )
    with pytest.raises(MalformedRecordError, match=said):
        world.files.open("/a.log").read()


def test_a_reader_refuses_what_the_standard_librarys_readers_refuse(scene: Scene) -> None:
    reader = scene.reader
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
