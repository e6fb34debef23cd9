"""Replicas of an older version, with CRC-32, beside new ones with CRC-32C."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest

from lockgate.storage_core.errors import LockgateError, MalformedRecordError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.registered_volumes import RegisterVolume
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.files.volumes.replica_format import VERSION
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.files.volumes.view import VolumeView
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.probe import with_capabilities
from tests.support.files.file_world import TEXT, FileWorld
from tests.support.files.older_replicas import make_older, make_older_segment
from tests.unit.files.replicas.test_verification import faults, flip, verify

B = BlockId(7)
S1, S2, S3 = Stamp(1, 1), Stamp(1, 2), Stamp(1, 3)
LARGE = 16


def _head(folder: Path, block: int) -> int:
    """Return the version of a replica."""
    return int.from_bytes((folder / f"{block:020d}.head").read_bytes()[4:8], "big")


@pytest.fixture(params=[1, 2])
def older(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a directory with a sealed replica of an older version."""
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        volume.append(B, S1, 0, b"abc")
        volume.append(B, S1, 3, b"defg")
        volume.finish(B, S1, 7, ReplicaState.SEALED)
    make_older(tmp_path, 7, request.param)
    return tmp_path


def test_an_older_replica_is_read_appended_and_cut_and_keeps_its_checksums(older: Path) -> None:
    with LocalVolume(older) as volume:
        assert VolumeView(older, volume.id).read(B, S1, 1, 9) == b"bcdefg"
        assert volume.read(B, S1, 1, 9) == b"bcdefg"
        volume.fence(B, S2)
        volume.finish(B, S2, 7, ReplicaState.WRITING)
        volume.append(B, S2, 7, b"hi")
        volume.flush(B, S2)
    with LocalVolume(older) as volume:
        assert volume.read(B, S2, 0, 99) == b"abcdefghi"
        volume.fence(B, S3)
        volume.trim(B, S3, 4)
        volume.finish(B, S3, 4, ReplicaState.SEALED)
        volume.create(BlockId(8), S3)
    with LocalVolume(older) as volume:
        assert volume.read(B, S3, 0, 99) == b"abcd"
        assert [one.length_bytes for one in volume.replicas(None, 9)] == [4, 0]
    assert _head(older, 7) < _head(older, 8) == VERSION


@pytest.mark.parametrize("version", [1, 2])
def test_wrong_bytes_are_found_in_either_version(tmp_path: Path, version: int) -> None:
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        volume.append(B, S1, 0, b"abc")
        volume.finish(B, S1, 3, ReplicaState.SEALED)
    if version == 1:
        make_older(tmp_path, 7)
    for name in ("head", "log"):
        path = tmp_path / f"{7:020d}.{name}"
        whole = path.read_bytes()
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            with LocalVolume(tmp_path) as volume:
                volume.stat(B)  # it is loaded before the damage
                path.write_bytes(damaged)
                if name == "log":
                    with pytest.raises(MalformedRecordError, match="checksum"):
                        volume.read(B, S1, 0, 3)
            with LocalVolume(tmp_path) as volume:
                try:
                    found = volume.stat(B)
                except LockgateError:
                    found = None
                assert found is None or (found.state, found.length_bytes) == (ReplicaState.SUSPECT, 0)
            path.write_bytes(whole)
    with LocalVolume(tmp_path) as volume:
        assert volume.read(B, S1, 0, 3) == b"abc"


@pytest.fixture
def world(world: FileWorld) -> FileWorld:
    """A file whose blocks have members of both versions."""
    world.write(world.process(), "/a.log")
    world.stop_volumes()
    for row in world.rows(Block):
        make_older(world.folders[0], row.block)
    world.start_volumes()
    return world


def test_a_file_with_members_of_both_versions_is_appended_cut_recovered_and_verified(
    world: FileWorld,
) -> None:
    files = world.process()
    with files.append("/a.log") as writer:
        writer.write(b"klm")
    assert files.open("/a.log").read() == TEXT + b"klm"
    files.truncate("/a.log", 18)
    left = files.append("/a.log")
    left.write(b"XYZ")
    left.flush()
    world.lapse(files)
    (done,) = world.process().recovery.recover_lapsed()
    assert done.length_bytes == 21
    *_, last = world.rows(Block)
    versions = [_head(folder, last.block) for folder in world.folders]
    assert sorted(versions) == [1, VERSION, VERSION]
    for at in range(3):  # each member alone has the same bytes
        name = world.names[at]
        alone = Files(world.journal, {name: world.volumes[name]}, load_settings())
        assert alone.open("/a.log").read() == TEXT[:18] + b"XYZ"
    assert [one.findings for one in verify(world).values()] == [[], [], []]


def test_damage_of_an_older_member_and_of_a_new_one_is_quarantined_and_copied_as_new(
    world: FileWorld,
) -> None:
    first, second, _ = (row.block for row in world.rows(Block))
    flip(world, 0, first)
    flip(world, 1, second)

    verify(world)

    assert set(faults(world)) == {(first, world.names[0]), (second, world.names[1])}
    assert world.process().open("/a.log").read() == TEXT
    for volume in world.volumes:
        world.journal.apply(RegisterVolume(volume=volume, url=f"https://{volume}.example"))
    assert {one.why_not for one in world.process().upkeep.re_replicate()} == {""}
    assert (_head(world.folders[0], first), _head(world.folders[1], second)) == (VERSION, VERSION)
    assert [one.findings for one in verify(world).values()] == [[], [], []]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store that copies parts of 16 bytes and more."""
    opened = open_store(str(tmp_path / "bucket"), load_settings())
    return with_capabilities(opened, msgspec.structs.replace(opened.capabilities, min_part_bytes=LARGE))


def _segments(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "bucket").rglob("segments/*/*"))


def test_a_bucket_has_segments_of_both_versions_and_composes_them(tmp_path: Path, store: Store) -> None:
    volume = S3Volume(store)
    volume.create(B, S1)
    volume.append(B, S1, 0, b"a" * LARGE)
    volume.flush(B, S1)
    volume.append(B, S1, LARGE, b"b")
    volume.flush(B, S1)
    for path in _segments(tmp_path):
        make_older_segment(path)

    volume = S3Volume(store)
    assert volume.read(B, S1, 0, 99) == b"a" * LARGE + b"b"
    volume.append(B, S1, LARGE + 1, b"c" * LARGE)
    volume.flush(B, S1)
    whole = b"a" * LARGE + b"b" + b"c" * LARGE
    assert S3Volume(store).read(B, S1, 0, 99) == whole
    volume.finish(B, S1, len(whole), ReplicaState.SEALED)
    (composed,) = (tmp_path / "bucket").rglob("composed/*/*")
    for one in (volume, S3Volume(store)):
        assert one.read(B, S1, 0, 99) == whole
    data = composed.read_bytes()
    for at in (0, LARGE, LARGE + 1):
        composed.write_bytes(data[:at] + b"?" + data[at + 1 :])
        with pytest.raises(MalformedRecordError, match="checksum"):
            S3Volume(store).read(B, S1, 0, 99)


def test_an_older_composition_is_read_and_taken_into_a_new_one(tmp_path: Path, store: Store) -> None:
    volume = S3Volume(store)
    volume.create(B, S1)
    volume.append(B, S1, 0, b"a" * LARGE)
    volume.flush(B, S1)
    volume.append(B, S1, LARGE, b"bc")
    volume.finish(B, S1, LARGE + 2, ReplicaState.SEALED)
    (composed,) = (tmp_path / "bucket").rglob("composed/*/*")
    sums = [(LARGE, zlib.crc32(b"a" * LARGE)), (2, zlib.crc32(b"bc"))]
    composed.write_bytes(b"a" * LARGE + b"bc" + msgspec.msgpack.encode(sums))
    for path in _segments(tmp_path):
        make_older_segment(path)

    volume = S3Volume(store)
    assert volume.read(B, S1, 0, 99) == b"a" * LARGE + b"bc"
    volume.fence(B, S2)
    volume.finish(B, S2, LARGE + 2, ReplicaState.WRITING)
    volume.append(B, S2, LARGE + 2, b"d")
    volume.finish(B, S2, LARGE + 3, ReplicaState.SEALED)

    assert S3Volume(store).read(B, S2, 0, 99) == b"a" * LARGE + b"bcd"
    (composed,) = (tmp_path / "bucket").rglob("composed/*/*")
    data = composed.read_bytes()
    composed.write_bytes(b"?" + data[1:])
    with pytest.raises(MalformedRecordError, match="checksum"):
        S3Volume(store).read(B, S2, 0, 99)
