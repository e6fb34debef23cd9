"""After a fork while threads read at observers, the child can still read."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.support.journal.observers import ObserverWorld, server_and_rows, take

pytestmark = pytest.mark.integration


def test_a_child_reads_at_observers_at_any_point_of_its_parents_threads(tmp_path: Path) -> None:
    world = ObserverWorld(tmp_path)
    try:
        take(world.journal)
        world.tailer().poll()
        client = world.client()
        assert client.read(server_and_rows) == ("observer-0", 1)
        held, forked = threading.Event(), threading.Event()

        def hold() -> None:
            with client._pool._changing:
                held.set()
                forked.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(100)  # do not leave a hanging process behind
            try:
                os._exit(0 if client.read(server_and_rows) == ("observer-0", 1) else 1)
            finally:
                os._exit(2)
        forked.set()
        holder.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.read(server_and_rows) == ("observer-0", 1)
    finally:
        world.close()
