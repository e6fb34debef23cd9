"""Volumes of an older Lockgate, converted in place."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.errors import ConflictError, RecordVersionError
from lockgate.storage_core.file_locks import lock_exclusive
from lockgate.storage_core.files.volumes.directory.conversion import Conversion, convert
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import Crash
from tests.support.files.older_replicas import older_replica
from tests.unit.files.volumes.test_directory_volume import SteppingDisk

S1, S2 = Stamp(1, 1), Stamp(1, 2)
WRITING, SEALED = ReplicaState.WRITING, ReplicaState.SEALED
TRIMMED = ((0, b"abcdef"), (4, b""), (4, b"XY"))


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Return a directory with a replica of each kind."""
    folder = tmp_path / "older"
    (folder / "quarantine").mkdir(parents=True)
    (folder / "volume.id").write_text("0123")
    (folder / "owner.lock").write_text("99")
    for version in range(4):
        older_replica(folder, 1 + version, TRIMMED, version=version, length=6)
    older_replica(folder, 5, TRIMMED, state="writing")
    older_replica(folder, 6, TRIMMED, state="suspect", length=5)
    older_replica(folder, 7, TRIMMED, state="stale")
    older_replica(folder, 8, TRIMMED, length=7)
    older_replica(folder, 9, TRIMMED, length=6)
    (folder / f"{9:020d}.head").write_bytes(b"damaged")
    (folder / f"{10:020d}.log").write_bytes(b"of a creation that was interrupted")
    older_replica(folder / "quarantine", 3, TRIMMED)
    for suffix in ("head", "log"):
        (folder / "quarantine" / f"{3:020d}.{suffix}").rename(folder / "quarantine" / f"{3:020d}.0.{suffix}")
    return folder


def _check(folder: Path) -> None:
    with DirectoryVolume(folder, volume=VolumeId("0123")) as volume:
        sealed = [Replica(BlockId(1), Stamp(), SEALED, 6, 6)]
        sealed += [Replica(BlockId(one), S1, SEALED, 6, 6) for one in (2, 3, 4)]
        opened = [Replica(BlockId(5), S1, WRITING, 6, 6), Replica(BlockId(6), S1, WRITING, 5, 5)]
        assert volume.replicas(None, 99) == (*sealed, *opened)
        for replica in (*sealed, *opened):
            assert volume.read(replica.block, replica.stamp, 0, 99) == b"abcdXY"[: replica.length_bytes]
        assert volume.quarantined(None, 99) == (3, 7, 8, 9)
        assert volume.fence(BlockId(5), S2, S1).length_bytes == 6
        assert volume.append(BlockId(5), S2, 6, b"Z") == 7
        assert volume.finish(BlockId(5), S2, 7, SEALED).damage == ""
    assert sorted(os.listdir(folder)) == ["blocks", "quarantine", "volume.id"]  # noqa: PTH208
    kept = sorted(int(path.parent.parent.name) for path in folder.glob("quarantine/*/*/*.log"))
    assert kept == [3, 7, 8, 9]


def test_replicas_of_each_version_and_state_are_converted_or_set_aside(older: Path) -> None:
    found = convert(older, dry_run=True)
    assert (found.converted, found.suspect, sorted(found.set_aside)) == (6, (6,), [7, 8, 9])
    assert "only 6 of 7 bytes are intact" in found.set_aside[BlockId(8)]
    assert not (older / "blocks").exists()
    assert convert(older) == found
    _check(older)
    assert convert(older) == Conversion(0, (), {})


def test_a_conversion_that_dies_at_any_call_is_repeated(older: Path, tmp_path: Path) -> None:
    for dies_at in itertools.count(1):
        folder = tmp_path / str(dies_at)
        shutil.copytree(older, folder)
        try:
            convert(folder, disk=SteppingDisk(dies_at))
        except Crash:
            if any(folder.glob("*.head")):
                with pytest.raises(ConflictError, match="convert"):
                    DirectoryVolume(folder)
            convert(folder)
        else:
            break
        _check(folder)
    assert dies_at > 60


def test_a_volume_that_is_open_or_newer_is_not_converted(older: Path) -> None:
    with lock_exclusive(older / "owner.lock"), pytest.raises(ConflictError, match="end it"):
        convert(older)
    (older / f"{1:020d}.head").write_bytes(b"LGRP" + (4).to_bytes(4))
    with pytest.raises(RecordVersionError, match="version 4"):
        convert(older)
    assert not (older / "blocks").exists()
