"""Damage of the replicas of a file, through `Files`: all its bytes are right, or an error is raised."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from lockgate.storage_core.errors import MalformedRecordError, StoreUnavailableError
from lockgate.storage_core.files.files import Files
from tests.support.files.file_world import FileWorld
from tests.support.soak import IS_SOAK

PIECES = (b"abcdef", b"gh", b"ijk")
WHOLE = b"".join(PIECES)


def _flip(log: Path, at: int) -> None:
    data = log.read_bytes()
    log.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])


def _cut(log: Path, at: int) -> None:
    log.write_bytes(log.read_bytes()[:at])


def _zero(log: Path, at: int) -> None:
    data = log.read_bytes()
    log.write_bytes(data[:at] + bytes(len(data) - at))


def _remove_log(log: Path, _: int) -> None:
    log.unlink()


def _remove_replica(log: Path, _: int) -> None:
    shutil.rmtree(log.parent)


def _write(world: FileWorld, path: str, members: int, *, is_closed: bool, is_continued: bool) -> int:
    """Write and flush a file, and return its block; one that is not closed is left by a writer that dies."""
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
    return record.block


def _places(log: Path) -> list[int]:
    """Return some places of a log where it has something; the tests of a volume damage each."""
    data = log.read_bytes()
    parts = [at for at in range(len(data)) if any(data[max(at - 4, 0) : at + 5])]
    return parts[3 :: 5 if IS_SOAK else len(parts) // 4]


def _read(files: Files, path: str) -> bytes | None:
    """Read a file; return None for an error that names it."""
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
    plan = [
        (damage, at, place)
        for at, log in enumerate(_logs(world, first))
        for damage, places in (
            (_flip, _places(log)),
            (_cut, _places(log)),
            (_zero, _places(log)),
            (_remove_log, [0]),
            (_remove_replica, [0]),
        )
        for place in places
    ]
    assert len(plan) > 10
    for number, (damage, at, place) in enumerate(plan):
        path = f"/{number}.log"
        block = _write(world, path, members, is_closed=is_closed, is_continued=is_continued)
        damage(_logs(world, block)[at], place)
        alone = world.process(world.names[0])
        assert _read(alone, path) in {None, WHOLE}
        files = world.process()
        found = _read(files, path)
        assert found == WHOLE or (members == 1 and found is None)
        problems = [str(one) for one in files.upkeep.check(path).findings()]
        if is_closed:
            assert problems or found == WHOLE
        else:
            _recover(world, files, path, members)


def _logs(world: FileWorld, block: int) -> list[Path]:
    return sorted((world.opened[world.names[0]].folder / "blocks" / f"{block:020d}").iterdir())


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
