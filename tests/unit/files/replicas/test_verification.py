"""A verification reads the replicas of a volume, and quarantines those that are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import Fault
from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.files.namespace.rows import Block, Member, VerifiedVolume
from lockgate.storage_core.files.replicas import verification
from lockgate.storage_core.files.replicas.verification import VolumeVerification
from lockgate.storage_core.files.volumes.protocol import VolumeId
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT, FileWorld


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    world.write(world.process(), "/a.log")
    return world


def blocks(world: FileWorld) -> list[int]:
    return [row.block for row in world.rows(Block)]


def flip(world: FileWorld, at: int, block: int) -> Path:
    """Change a byte of a replica on its disk."""
    log: Path = world.folders[at] / f"{block:020d}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    return log


def verify(world: FileWorld, *at: int) -> dict[VolumeId, VolumeVerification]:
    only = [world.names[one] for one in at]
    return {one.volume: one for one in world.process().upkeep.verify(only)}


def faults(world: FileWorld) -> dict[tuple[int, str], Fault]:
    return {(row.block, row.volume): row.fault for row in world.rows(Member) if row.fault is not None}


@pytest.mark.parametrize("page", [1, 2, 500])
def test_whole_replicas_are_read_and_no_entry_is_written(
    world: FileWorld, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "PAGE", page)
    before = world.journal.status().stamp
    seen: list[tuple[str, int, int]] = []
    found = list(world.process().upkeep.verify(progress=lambda *one: seen.append(one)))
    assert [(one.replicas, one.read_bytes, one.findings, one.why_not) for one in found] == [
        (3, len(TEXT), [], "")
    ] * 3
    assert seen == [(f"verify {one.volume}", done, 0) for one in found for done in (1, 2, 3)]
    assert world.journal.status().stamp == before


def test_a_flipped_bit_is_quarantined_repaired_in_its_place_and_then_deleted(world: FileWorld) -> None:
    first, *_ = blocks(world)
    name = world.names[1]
    log = flip(world, 1, first)
    damaged = log.read_bytes()

    found = verify(world)

    assert (found[name].quarantined, found[name].only_ones) == (1, 0)
    assert [(one.block, one.path, one.problem) for one in found[name].findings] == [
        (first, "/a.log", "corrupt")
    ]
    assert "checksum" in found[name].findings[0].detail
    assert faults(world) == {(first, name): Fault.CORRUPT}
    assert log.read_bytes() == damaged
    assert world.process().open("/a.log").read() == TEXT
    again = verify(world)[name]
    assert (again.quarantined, len(again.findings)) == (0, 1)

    for volume in world.volumes:  # copies go to registered URLs only
        world.journal.apply(RegisterVolume(volume=volume, url=f"https://{volume}.example"))
    upkeep = world.process().upkeep
    assert [(one.volume, one.why_not) for one in upkeep.re_replicate()] == [(name, "")]
    aside = world.folders[1] / "quarantine" / f"{first:020d}.0.log"
    assert aside.read_bytes() == damaged
    assert verify(world)[name].findings == []
    assert upkeep.delete_left_over().discarded == 1
    assert not aside.exists()
    assert world.process().open("/a.log").read() == TEXT


def test_the_only_good_replica_is_named_and_not_quarantined(world: FileWorld) -> None:
    first, *_ = blocks(world)
    for at in range(3):
        flip(world, at, first)
    found = verify(world)
    assert sum(one.quarantined for one in found.values()) == 2
    assert sum(one.only_ones for one in found.values()) == 1
    assert len(faults(world)) == 2


def test_a_replica_that_is_good_again_is_used_again(world: FileWorld) -> None:
    first, *_ = blocks(world)
    flip(world, 0, first)
    verify(world, 0)
    assert len(faults(world)) == 1
    flip(world, 0, first)
    found = verify(world, 0)[world.names[0]]
    assert (found.released, found.findings) == (1, [])
    assert faults(world) == {}


def test_a_verification_that_was_stopped_goes_on_where_it_was(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "PAGE", 1)
    _, second, third = blocks(world)
    name = world.names[0]
    flip(world, 0, second)
    flip(world, 0, third)

    def die(point: str) -> None:
        if point == "verify.mark.before" and len(faults(world)) == 1:
            raise Crash(point)

    FAILPOINTS.observer = die
    with pytest.raises(Crash):
        verify(world, 0)
    FAILPOINTS.observer = None
    with world.journal.reading() as reading:
        row = reading.get(VerifiedVolume, name)
    assert row is not None
    assert (row.after_block, row.verified_s) == (second, None)
    assert (verify(world, 0)[name].replicas, len(faults(world))) == (1, 2)
    assert verify(world, 0)[name].replicas == 3
    assert world.journals.verify().findings == ()


def test_a_block_that_is_opened_meanwhile_is_left_to_its_writer(world: FileWorld) -> None:
    *_, last = blocks(world)
    name = world.names[0]
    flip(world, 0, last)

    def append(point: str) -> None:
        if point == "verify.mark.before":
            FAILPOINTS.observer = None
            with world.process(block_bytes=100).append("/a.log") as writer:
                writer.write(b"more")

    FAILPOINTS.observer = append
    assert verify(world, 0)[name].quarantined == 0
    assert faults(world) == {}
    assert world.process().open("/a.log").read() == TEXT + b"more"


def test_reads_are_paced_and_a_bad_limit_or_name_is_refused(world: FileWorld) -> None:
    began_s = world.clock.monotonic_s()
    list(world.process().upkeep.verify(bytes_per_s=4))
    assert world.clock.monotonic_s() - began_s == pytest.approx(3 * len(TEXT) / 4)
    with pytest.raises(InvalidInputError, match="bytes_per_s"):
        world.process().upkeep.verify(bytes_per_s=0)
    with pytest.raises(InvalidInputError, match="knows no volume"):
        world.process().upkeep.verify([VolumeId("none")])


def test_a_volume_that_does_not_answer_is_named_and_nothing_of_it_is_judged(world: FileWorld) -> None:
    name = world.names[0]
    del world.volumes[name]
    found = verify(world)
    assert "not known" in found[name].why_not
    assert [one.replicas for one in found.values() if not one.why_not] == [3, 3]
    assert faults(world) == {}
