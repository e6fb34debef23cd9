"""A copy is made of the good parts of all members; nothing is set aside for one that cannot be whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.settings import load_settings
from tests.support.files.file_world import FileWorld

FIRST, SECOND = b"a" * 1000, b"b" * 1000


def damage(folder: Path, needle: bytes) -> None:
    """Change a byte of the flush with these bytes."""
    (log,) = folder.glob("*.log")
    raw = bytearray(log.read_bytes())
    raw[raw.index(needle)] ^= 1
    log.write_bytes(raw)


@pytest.fixture
def files(world: FileWorld) -> Files:
    """Two replicas of a file with two flushes, and a third volume."""
    for name in world.names:
        world.journal.apply(RegisterVolume(volume=name, url=f"https://{name}.example"))
    with world.without(world.names[2]):
        files = world.process(block_bytes=4000)
        with files.create("/a.log") as writer:
            for data in (FIRST, SECOND):
                writer.write(data)
                writer.flush()
    return Files(world.journal, world.volumes, load_settings(files_replicas=2))


def test_replicas_with_different_damages_make_a_whole_copy(world: FileWorld, files: Files) -> None:
    damage(world.folders[0], FIRST)
    damage(world.folders[1], SECOND)
    with pytest.raises(StoreUnavailableError):
        files.open("/a.log").read()
    assert [one.quarantined for one in files.upkeep.verify()] != [0, 0, 0]

    (copied,) = files.upkeep.re_replicate()

    assert (copied.volume, copied.why_not) == (world.names[2], "")
    assert files.open("/a.log").read() == FIRST + SECOND


def test_nothing_is_set_aside_if_no_whole_copy_can_be_made(world: FileWorld, files: Files) -> None:
    for folder in world.folders[:2]:
        damage(folder, SECOND)
    list(files.upkeep.verify())
    with world.without(world.names[2]):
        (copied,) = files.upkeep.re_replicate()
    assert "serves byte" in copied.why_not
    assert all(volume.quarantined(None, 9) == () for volume in world.volumes.values())
    assert {len(list(folder.glob("*.head"))) for folder in world.folders[:2]} == {1}
    for folder in world.folders[:2]:
        damage(folder, bytes([SECOND[0] ^ 1]) + SECOND[1:])  # back to what it was
    assert files.open("/a.log").read() == FIRST + SECOND
