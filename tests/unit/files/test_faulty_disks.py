"""Full disks and failing syncs, through `Files`: no acknowledged byte is lost."""

from __future__ import annotations

import errno
import itertools

import pytest

from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from tests.support.files.file_world import FileWorld
from tests.support.soak import soak_only

PIECES = (b"abc", b"defgh", b"ijklmnopqrst", b"u")
REFUSED = (StoreUnavailableError, OutcomeUnknownError)


@pytest.mark.parametrize("times", [1, soak_only(1000)])
@pytest.mark.parametrize(
    ("call", "error", "sick"),
    [
        ("write", errno.ENOSPC, 1),
        ("sync", errno.EIO, 3),
        soak_only("write", errno.ENOSPC, 3),
        soak_only("sync", errno.EIO, 1),
    ],
)
def test_no_acknowledged_byte_is_lost_when_disks_fail_at_any_call(
    world: FileWorld, call: str, error: int, sick: int, times: int
) -> None:
    """The calls of all sick disks fail from the same one on; the writer tries a flush twice."""
    disks = [volume.disk for volume in world.opened.values()]
    for first in itertools.count(1):
        path = f"/{first}.log"
        files = world.process()
        for disk in disks[:sick]:
            disk.fail(call, error, range(first, first + times))
        flushed = sent = b""
        failed = 0
        writer = files.create(path)
        for piece in PIECES:
            for attempt in range(2):
                try:
                    if not attempt:
                        writer.write(piece)
                    writer.flush()
                except REFUSED:
                    failed += 1
                else:
                    flushed = sent + piece
                    with files.open(path) as reader:
                        assert reader.read() == flushed
                    break
            sent += piece
            if flushed != sent:
                break  # its bytes are kept by the writer, and not acknowledged
        try:
            writer.close()
            flushed = sent
        except REFUSED:
            failed += 1
        files.close()
        reached = disks[0].count >= first
        world.restart_volumes()
        assert world.recover() == []
        files = world.process()
        with files.open(path) as reader:
            found = reader.read()
        assert [one.problem for one in files.upkeep.check(path).findings()] == []
        files.close()
        assert found.startswith(flushed)
        assert sent.startswith(found)
        if sick == 1:
            assert not failed
            assert found == b"".join(PIECES)
        if not reached:
            assert first > 5
            return


def test_a_recovery_on_a_full_disk_waits_for_room_and_the_file_is_read_meanwhile(world: FileWorld) -> None:
    files = world.process(block_bytes=100)
    writer = files.create("/a.log", members=world.names[:1])
    for piece in PIECES:
        writer.write(piece)
        writer.flush()
    files.close()
    world.opened[world.names[0]].fail("full")
    for _ in range(2):
        (why,) = world.recover()
        assert "full" in why
        assert world.read() == b"".join(PIECES)
    world.opened[world.names[0]].fail("")
    assert world.recover() == []
    world.check_sealed("/a.log", b"".join(PIECES))
