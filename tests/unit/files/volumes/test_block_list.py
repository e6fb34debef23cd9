"""Which replicas the memory of a volume keeps."""

from __future__ import annotations

import gc
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockgate.storage_core.files.volumes import block_list, local_replica
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.files.volumes.view import VolumeView
from lockgate.storage_core.stamp import Stamp

B = BlockId(7)
S1, S2 = Stamp(1, 1), Stamp(1, 2)


def _in_memory() -> int:
    gc.collect()
    return sum(type(one) is local_replica.LocalReplica for one in gc.get_objects())


def test_memory_keeps_the_sealed_replicas_that_were_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_list, "KEPT_FRAMES", 40)
    sealed = [BlockId(number) for number in range(20, 40)]
    before = _in_memory()
    with LocalVolume(tmp_path) as volume:
        volume.create(B, S1)
        volume.append(B, S1, 0, b"not flushed")
        for block in sealed:
            volume.create(block, S1)
            for offset in range(3):
                volume.append(block, S1, offset, b"%d" % offset)
            volume.finish(block, S1, 3, ReplicaState.SEALED)
        assert _in_memory() - before == 1 + 3
        view = VolumeView(tmp_path, volume.id)
        for there in (volume, view):
            assert [there.read(block, S1, 1, 9) for block in sealed] == [b"12"] * 20
            assert [there.stat(block) for block in sealed] == list(there.replicas(B, 99))
        assert _in_memory() - before == 1 + 3 + 3

        monkeypatch.setattr(block_list, "KEPT_FRAMES", 0)
        for there in (volume, view):
            loaded = [there.stat(block) for block in (*sealed, *sealed[:2])]
            assert len(loaded) == 22
        assert _in_memory() - before == 1 + 2 + 2
        assert volume.append(B, S1, 11, b", and more") == volume.flush(B, S1) == 21


def test_a_sealed_replica_that_is_being_cut_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_list, "KEPT_FRAMES", 0)
    with LocalVolume(tmp_path) as volume:
        for block in (B, BlockId(20), BlockId(21), BlockId(22)):
            volume.create(block, S1)
            volume.append(block, S1, 0, b"abc")
            volume.finish(block, S1, 3, ReplicaState.SEALED)
        volume.fence(B, S2)
        volume.trim(B, S2, 2)
        for block in (BlockId(20), BlockId(21), BlockId(22)):
            volume.stat(block)
        assert volume.stat(B) == Replica(B, S2, ReplicaState.SEALED, 2, 2)
        volume.finish(B, S2, 2, ReplicaState.SEALED)
        assert volume.read(B, S2, 0, 9) == b"ab"


def test_threads_that_use_more_replicas_than_memory_keeps_harm_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_list, "KEPT_FRAMES", 0)
    with LocalVolume(tmp_path) as volume, ThreadPoolExecutor(4) as threads:

        def write(thread: int) -> list[bytes]:
            blocks = [BlockId(10 * thread + number) for number in range(3)]
            for block in blocks:
                volume.create(block, Stamp(1, 0))
            for step, block in itertools.product(range(10), blocks):
                stamp = Stamp(1, step)
                volume.fence(block, stamp)
                volume.finish(block, stamp, step, ReplicaState.WRITING)
                volume.append(block, stamp, step, b"%d" % step)
                volume.finish(block, stamp, step + 1, ReplicaState.SEALED)
            return [volume.read(block, Stamp(1, 9), 0, 99) for block in blocks]

        assert list(threads.map(write, range(1, 5))) == [[b"0123456789"] * 3] * 4
