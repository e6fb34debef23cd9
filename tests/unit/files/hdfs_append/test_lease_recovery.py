"""HDFS Append and Truncates, section "Lease recovery"."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import (
    FencedError,
    LeaseHeldError,
)
from lockgate.storage_core.files.namespace.rows import Block
from lockgate.storage_core.files.volumes.protocol import ReplicaState
from tests.support.files.file_world import TEXT, FileWorld


def test_a_file_whose_writer_ended_is_recovered_with_all_flushed_bytes(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(TEXT)
    writer.flush()
    ended.close()
    files = world.process()
    with pytest.raises(LeaseHeldError, match="lapses in"):
        files.recover("/a.log")
    world.lapse(files)

    (found,) = files.recovery.recover_lapsed()
    assert (found.path, found.length_bytes, found.why_not) == ("/a.log", 20, "")
    assert files.open("/a.log").read() == TEXT
    assert files.recover("/a.log") is None
    assert not files.status("/a.log").is_open
    writer.write(b"late")
    with pytest.raises(FencedError):
        writer.flush()


def test_an_append_recovers_a_file_whose_lease_has_lapsed(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(b"one")
    writer.flush()
    ended.close()
    files = world.process()
    world.lapse(files)
    with files.append("/a.log") as again:
        again.write(b"two")

    assert files.open("/a.log").read() == b"onetwo"


def test_a_file_is_not_recovered_while_its_members_do_not_answer(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(b"one")
    writer.flush()
    ended.close()
    files = world.process()
    world.lapse(files)
    reached = dict(world.volumes)
    world.volumes.clear()
    (found,) = files.recovery.recover_lapsed()
    assert found.length_bytes is None
    assert "nothing was committed" in found.why_not
    world.volumes.update(reached)

    (found,) = world.process().recovery.recover_lapsed()
    assert found.length_bytes == 3  # at once: the recovery that failed gave its lease back


def test_the_last_flush_of_a_stopped_volume_counts_after_its_restart(world: FileWorld) -> None:
    ended = world.process()
    writer = ended.create("/a.log")
    writer.write(b"one")
    writer.flush()
    ended.close()
    world.restart_volumes()
    files = world.process()
    world.lapse(files)

    (found,) = files.recovery.recover_lapsed()
    assert found.length_bytes == 3
    (block,) = world.rows(Block)
    assert block.state is ReplicaState.SEALED
    assert files.open("/a.log").read() == b"one"
