"""HDFS Append and Truncates, section "Truncates"."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockgate.storage_core.errors import (
    InvalidInputError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import Crash
from tests.support.files.file_world import TEXT, FileWorld


@pytest.mark.parametrize("length", range(21))
def test_a_truncate_at_every_byte_of_three_blocks(world: FileWorld, length: int) -> None:
    files = world.process()
    world.write(files, "/a.log")
    files.truncate("/a.log", length)
    files.truncate("/a.log", length)

    assert files.open("/a.log").read() == TEXT[:length]
    assert files.status("/a.log").length_bytes == length
    with files.append("/a.log") as writer:
        writer.write(b"-end")
    assert files.open("/a.log").read() == TEXT[:length] + b"-end"
    assert files.remove_deleted().blocks == len([start for start in (8, 16) if length <= start])


@pytest.mark.parametrize("length", [0, 5, 8, 12, 16, 19])
def test_a_truncate_that_dies_at_any_step_leaves_the_old_length_or_the_new(
    world: FileWorld, length: int
) -> None:
    for die_at in itertools.count():
        path = f"/{die_at}.log"
        world.write(world.process(), path)
        dying, steps = world.process(), itertools.count()

        def die(point: str, die_at: int = die_at, steps: Iterator[int] = steps) -> None:
            if next(steps) == die_at:
                raise Crash(point)

        FAILPOINTS.observer = die
        try:
            dying.truncate(path, length)
        except Crash:
            FAILPOINTS.observer = None
        else:
            FAILPOINTS.observer = None
            assert die_at > 8
            return
        finally:
            FAILPOINTS.observer = None
            dying.close()
        files = world.process()
        if files.status(path).is_open:
            world.lapse(files)
            assert [found.why_not for found in files.recovery.recover_lapsed()] == [""]
        assert files.open(path).read() in {TEXT, TEXT[:length]}
        files.truncate(path, length)
        assert files.open(path).read() == TEXT[:length]


@pytest.mark.parametrize("length", [-1, 21, 10**12])
def test_a_length_outside_the_file_is_refused_and_nothing_is_changed(world: FileWorld, length: int) -> None:
    files = world.process()
    world.write(files, "/a.log")
    before = world.journal.status().stamp

    with pytest.raises(InvalidInputError, match="give a length from 0 to 20"):
        files.truncate("/a.log", length)
    assert world.journal.status().stamp == before
