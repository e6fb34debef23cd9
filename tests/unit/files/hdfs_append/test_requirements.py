"""HDFS Append and Truncates, section "Requirements"."""

from __future__ import annotations

import pytest

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    LeaseHeldError,
)
from tests.support.files.file_world import FileWorld


def test_a_file_has_one_writer(world: FileWorld) -> None:
    writer = world.process().create("/a.log")

    with pytest.raises(LeaseHeldError):
        world.process().append("/a.log")
    with pytest.raises(LeaseHeldError):
        world.process().truncate("/a.log", 0)
    with pytest.raises(AlreadyExistsError, match=r"/a\.log is a file already"):
        world.process().create("/a.log")
    writer.close()


def test_flushed_bytes_are_read_by_another_process_before_the_file_is_closed(world: FileWorld) -> None:
    writer = world.process().create("/a.log")
    writer.write(b"one")
    writer.flush()
    reader = world.process().open("/a.log")

    assert reader.read() == b"one"
    writer.write(b"two")
    writer.flush()
    assert reader.read() == b"two"
    writer.close()
