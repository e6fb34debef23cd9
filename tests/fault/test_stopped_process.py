"""A driver is stopped (SIGSTOP) in the middle of a deletion, while it holds the lock of the file's key."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.stores.local import key_locks
from tests.support.commit.destination import ManualClock, World, plain

pytestmark = pytest.mark.fault

OLD = {"old.csv": b"old"}
NEW = {"new.csv": b"new"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, str(tmp_path / "dest"), ManualClock(time.time()))
    world.run("old", OLD)
    return world


class Stopped:
    """A driver that published a `replace` and is stopped in the deletion of the old file."""

    def __init__(self, world: World) -> None:
        (old,) = world.keys()
        gate, self._gate = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            unlink = os.unlink

            def stop_at_the_old_file(name: str, *, dir_fd: int | None = None) -> None:
                if name == old:
                    os.kill(os.getpid(), signal.SIGSTOP)
                    os.read(gate, 1)  # the signal may reach another thread first
                unlink(name, dir_fd=dir_fd)

            os.unlink = stop_at_the_old_file  # type: ignore[assignment]
            try:
                world.run("new", NEW, mode="replace")
            finally:
                os._exit(0)
        os.close(gate)
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def resume(self) -> None:
        """Continue the process, and wait for its end."""
        os.kill(self.pid, signal.SIGCONT)
        os.write(self._gate, b"x")
        self._wait()

    def kill(self) -> None:
        """Kill the process if it has not ended."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self._gate)
        self.pid = 0


@pytest.fixture
def stopped(world: World) -> Iterator[Stopped]:
    driver = Stopped(world)
    yield driver
    driver.kill()


def test_recovery_names_a_stopped_driver_and_finishes_its_job_after_its_end(
    world: World, stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_locks, "LOCK_WAIT_S", 0.05)
    (found,) = world.recover()
    assert (found.found, found.ended) == (JobPhase.PUBLISHED, None)
    assert f"pid {stopped.pid} on" in found.detail
    assert not found.needs_an_operator
    stopped.kill()
    (found,) = world.recover()
    assert found.ended is JobPhase.COMMITTED
    assert world.visible() == NEW


def test_a_job_commits_beside_a_stopped_driver_which_then_finishes_its_own(
    world: World, stopped: Stopped
) -> None:
    world.run("other", {"other.csv": b"other"})
    assert {plain(key) for key in world.live()} == {"new.csv", "other.csv"}
    stopped.resume()
    assert world.visible() == {**NEW, "other.csv": b"other"}
    assert world.attach("new-g1").phase() is JobPhase.COMMITTED
