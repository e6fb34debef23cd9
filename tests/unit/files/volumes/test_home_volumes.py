"""Volumes of a home directory in several processes: read by all, each changed by one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Thread

import pytest

from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.files.volumes.home import HomeVolumes
from lockgate.storage_core.files.volumes.protocol import NotOwnerError, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.stamp import Stamp

B, OTHER = BlockId(7), BlockId(8)
S1, S2, S3 = Stamp(1, 1), Stamp(1, 2), Stamp(1, 3)
Process = Callable[..., HomeVolumes]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Return the volumes of another process: two of one process exclude each other like those of two."""
    with ExitStack() as stack:

        def begin(*, owns: bool = True) -> HomeVolumes:
            volumes = HomeVolumes(tmp_path, owns=owns)
            stack.callback(volumes.close)
            return volumes

        yield begin


def left_by_a_writer(ended: HomeVolumes) -> VolumeId:
    """Return the volume of a process that has ended without closing its block."""
    (volume,) = ended.own()
    ended[volume].create(B, S1)
    ended[volume].append(B, S1, 0, b"flushed")
    ended[volume].flush(B, S1)
    ended.close()
    return volume


def test_a_process_that_only_reads_a_volume_leaves_it_to_the_one_that_recovers_its_files(
    process: Process,
) -> None:
    volume = left_by_a_writer(process())
    reading, recovering = process(), process()
    assert reading[volume].read(B, S1, 0, 9) == b"flushed"
    assert reading[volume].replicas(None, 9) == (reading[volume].stat(B),)
    assert reading[volume].usage().used_bytes
    assert reading[volume].quarantined(None, 9) == ()

    recovering[volume].fence(B, S2)
    recovering[volume].finish(B, S2, 7, ReplicaState.SEALED)
    assert reading[volume].read(B, S2, 0, 9) == b"flushed"


def test_a_volume_is_changed_by_one_process_until_that_ends(process: Process) -> None:
    volume = left_by_a_writer(process())
    one, two, reader = process(), process(), process(owns=False)
    one[volume].fence(B, S2)
    with pytest.raises(NotOwnerError, match=f"with pid {os.getpid()}; nothing was changed"):
        two[volume].fence(B, S3)
    assert two.own() != (volume,)
    one.close()
    with pytest.raises(NotOwnerError, match="writes=True"):
        reader[volume].fence(B, S3)
    two[volume].fence(B, S3)
    with pytest.raises(NotOwnerError):
        one[volume].fence(B, S3)


def test_a_reader_of_a_volume_stays_right_when_its_process_takes_it(process: Process) -> None:
    volume = left_by_a_writer(process())
    home = process()
    before = home[volume]
    assert before.read(B, S1, 0, 9) == b"flushed"
    home[volume].fence(B, S2)
    home[volume].finish(B, S2, 7, ReplicaState.WRITING)
    home[volume].append(B, S2, 7, b", more")
    assert before.flush(B, S2) == 13
    assert before.read(B, S2, 0, 99) == home[volume].read(B, S2, 0, 99) == b"flushed, more"


def test_threads_that_change_a_volume_at_once_take_it_together(process: Process) -> None:
    volume = left_by_a_writer(process())
    home = process()
    views = [home[volume] for _ in range(8)]
    begin, done = Barrier(8), []

    def create(number: int) -> None:
        begin.wait()
        done.append(views[number].create(BlockId(10 + number), S2).block)

    threads = [Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [BlockId(10 + number) for number in range(8)]
    assert len(home[volume].replicas(None, 99)) == 9


def test_a_volume_that_was_removed_is_neither_read_nor_made_again(process: Process, tmp_path: Path) -> None:
    volume = left_by_a_writer(process())
    home = process()
    seen = home[volume]
    (folder,) = tmp_path.iterdir()
    shutil.move(folder, tmp_path.parent / "away")
    assert home.get(volume) is None
    with pytest.raises(StoreUnavailableError, match=r"not in .* any more; nothing was changed"):
        seen.create(OTHER, S2)
    assert not folder.exists()
