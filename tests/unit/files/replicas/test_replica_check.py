"""A check of replicas finds what differs from the journal, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.replicas import replica_check
from lockgate.storage_core.files.replicas.replica_check import Finding, Problem
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.files.file_world import TEXT, FileWorld
from tests.support.files.memory_volume import MemoryVolume


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    files = world.process()
    files.make_directory("/logs")
    world.write(files, "/logs/a.log")
    world.write(files, "/b.log", b"abc")
    return world


def found(world: FileWorld, path: str = "", *, verify: bool = False) -> list[Finding]:
    return list(world.process().check(path, verify=verify).findings())


def blocks(world: FileWorld) -> list[int]:
    return [row.block for row in world.rows(Block)]


@pytest.mark.parametrize("page", [1, 2, 500])
def test_whole_files_have_no_findings(world: FileWorld, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_check, "PAGE", page)
    check = world.process().check(verify=True)
    assert list(check.findings()) == []
    assert (check.replicas, check.verified_bytes) == (12, 3 * (len(TEXT) + 3))


@pytest.mark.parametrize("page", [1, 500])
def test_each_replica_that_differs_is_found_with_its_file(
    world: FileWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_check, "PAGE", page)
    first, second, third, other = blocks(world)
    world.stop_volumes()
    folder = world.folders[0]
    for suffix in ("head", "log"):
        (folder / f"{first:020d}.{suffix}").unlink()
    (folder / f"{second:020d}.head").write_bytes(b"damaged")
    log = folder / f"{third:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    world.start_volumes()
    volume = VolumeId((folder / "volume.id").read_text())
    world.volumes[volume].create(BlockId(3), Stamp(1, 1))
    world.volumes[volume].create(BlockId(other + 1), Stamp(1, 10**6))
    world.volumes[volume].create(BlockId(other + 2), Stamp(9, 1))

    assert [(one.block, one.problem, one.path) for one in found(world)] == [
        (3, Problem.LEFT_OVER, ""),
        (first, Problem.LOST, "/logs/a.log"),
        (second, Problem.CORRUPT, "/logs/a.log"),
        (third, Problem.CORRUPT, "/logs/a.log"),
        (other + 1, Problem.UNEXPLAINED, ""),
        (other + 2, Problem.UNEXPLAINED, ""),
    ]
    assert {one.volume for one in found(world)} == {volume}
    assert [one.block for one in found(world, "/logs")] == [first, second, third]
    assert [one.block for one in found(world, "/logs/a.log")] == [first, second, third]
    assert found(world, "/b.log") == []
    assert len(found(world, "/")) == 3
    with pytest.raises(ObjectNotFoundError):
        found(world, "/none")


def test_a_volume_that_returns_with_old_replicas_is_stale(world: FileWorld, tmp_path: Path) -> None:
    world.stop_volumes()
    shutil.copytree(world.folders[0], tmp_path / "old")
    world.start_volumes()
    with world.process().append("/b.log") as writer:
        writer.write(b"def")
    world.stop_volumes()
    shutil.rmtree(world.folders[0])
    shutil.copytree(tmp_path / "old", world.folders[0])
    world.start_volumes()

    (one,) = found(world)
    assert (one.block, one.problem, one.path) == (blocks(world)[-1], Problem.STALE, "/b.log")
    assert world.process().open("/b.log").read() == b"abcdef"


def test_a_bit_flip_at_rest_is_found_by_reading(world: FileWorld) -> None:
    log = world.folders[1] / f"{blocks(world)[0]:020d}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)

    assert found(world) == []
    (one,) = found(world, verify=True)
    assert (one.block, one.problem) == (blocks(world)[0], Problem.CORRUPT)
    assert "checksum" in one.detail


def test_a_file_that_is_written_is_not_wrong(world: FileWorld) -> None:
    writer = world.process().create("/open.log")
    writer.write(b"x" * 20)
    writer.flush()
    assert found(world, verify=True) == []
    world.restart_volumes()
    assert found(world, verify=True) == []


def test_volumes_that_do_not_answer_are_named_and_their_replicas_are_not_called_lost(
    world: FileWorld,
) -> None:
    gone, down, here = sorted(world.volumes)
    files = Files(
        world.journal, {down: MemoryVolume(is_up=False), here: world.volumes[here]}, load_settings()
    )
    for path in ("", "/logs"):
        findings = files.check(path).findings()
        problems = [(one.volume, one.problem, one.block) for one in findings]
        assert problems == [(volume, Problem.UNREACHABLE, None) for volume in (gone, down)]
    statuses = {one.volume: one for one in files.upkeep.statuses()}
    assert [bool(statuses[name].why_not) for name in (gone, down, here)] == [True, True, False]
    assert statuses[here].used_bytes


def test_what_changes_during_a_check_is_not_reported(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for volume in world.volumes.values():
        listed = volume.replicas

        def change(after: BlockId | None, limit: int, listed=listed) -> tuple[Replica, ...]:  # type: ignore[no-untyped-def]
            page: tuple[Replica, ...] = listed(after, limit)
            files = world.process()
            if any(one.name == "b.log" for one in files.list("/")):
                files.delete("/b.log")
                files.remove_deleted()
                world.write(files, "/c.log")
            return page

        monkeypatch.setattr(volume, "replicas", change)
    assert found(world) == []
    assert world.process().open("/c.log").read() == TEXT


def test_a_verification_keeps_to_its_bandwidth(world: FileWorld) -> None:
    began_s = world.clock.monotonic_s()
    check = world.process().check(verify=True, bytes_per_s=10)
    assert list(check.findings()) == []
    assert world.clock.monotonic_s() - began_s == pytest.approx(check.verified_bytes / 10)
    with pytest.raises(InvalidInputError, match="more than 0"):
        world.process().check(bytes_per_s=0)
