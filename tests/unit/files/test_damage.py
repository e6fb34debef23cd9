"""Damage of the replicas of a file, through `Files`: all its bytes are right, or an error is raised."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lockgate.storage_core.errors import MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.files.files import Files
from tests.support.files.file_world import FileWorld
from tests.support.soak import IS_SOAK

PIECES = (b"abcdef", b"gh", b"ijk")
WHOLE = b"".join(PIECES)
DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "flip": lambda data, at: data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :],
    "cut": lambda data, at: data[:at],
    "zero": lambda data, at: data[:at] + bytes(len(data) - at),
}


def _write(world: FileWorld, path: str, members: int, *, is_closed: bool, is_continued: bool) -> list[Path]:
    """Write a file, and return its logs on a volume; one that is not closed is left by a writer that dies."""
    files = world.process(block_bytes=100)
    writer = files.create(path, members=world.names[:members])
    for piece in PIECES:
        if is_continued and piece is not PIECES[0]:
            writer.close()
            writer = files.append(path)
        writer.write(piece)
        writer.flush()
    if is_closed:
        writer.close()
    files.close()
    (record,) = world.records(path)
    return sorted(world.opened[world.names[0]].log(record.block).parent.iterdir())


def _places(log: Path) -> list[int]:
    """Return some places of a log where it has something; the tests of a volume damage each."""
    data = log.read_bytes()
    parts = [at for at in range(len(data)) if any(data[max(at - 4, 0) : at + 5])]
    return parts[3 :: 5 if IS_SOAK else len(parts) // 4]


def _read(files: Files, path: str) -> bytes | None:
    """Read a file; return None for an error."""
    with suppress(MalformedRecordError, StoreUnavailableError), files.open(path) as reader:
        return reader.read()
    return None


@pytest.mark.parametrize("members", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_continued", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_damage_of_a_replica_is_never_read_and_never_shortens_a_file(
    world: FileWorld, members: int, is_continued: bool, is_closed: bool
) -> None:
    first = _write(world, "/first.log", members, is_closed=is_closed, is_continued=is_continued)
    plan = [(name, number, at) for name in DAMAGES for number, log in enumerate(first) for at in _places(log)]
    plan += [(name, number, 0) for name in ("log", "replica") for number, _ in enumerate(first)]
    assert len(plan) > 10
    for count, (damage, number, at) in enumerate(plan):
        path = f"/{count}.log"
        log = _write(world, path, members, is_closed=is_closed, is_continued=is_continued)[number]
        if damage in DAMAGES:
            log.write_bytes(DAMAGES[damage](log.read_bytes(), at))
        elif damage == "log":
            log.unlink()
        else:
            shutil.rmtree(log.parent)
        assert _read(world.process(world.names[0]), path) in {None, WHOLE}
        files = world.process()
        found = _read(files, path)
        assert found == WHOLE or (members == 1 and found is None)
        problems = [str(one) for one in files.upkeep.check(path).findings()]
        if is_closed:
            assert problems or found == WHOLE
        else:
            _recover(world, files, path, members)


def _recover(world: FileWorld, files: Files, path: str, members: int) -> None:
    """Recover an open file, and read it: whole, or the operator has accepted that it is shorter."""
    world.lapse()
    try:
        length = files.recover(path)
    except (MalformedRecordError, StoreUnavailableError):
        assert members == 1
        length = files.recover(path, accept_loss=True)
    else:
        assert length == len(WHOLE)
    assert _read(files, path) == WHOLE[:length]
