"""A Redis of a test's own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

from lockgate.workers.broker.embedded_broker import redis_program
from tests.support.postgres import free_port
from tests.support.workers.celery_worker import wait_until


@contextmanager
def redis_with_one_database(folder: Path) -> Iterator[int]:
    """Run a Redis until the block ends; yield its port when it answers."""
    port = free_port()
    server = subprocess.Popen(
        [redis_program(), "--port", str(port), "--bind", "127.0.0.1", "--databases", "1", "--save", ""],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(port=port) as client:
            wait_until(lambda: _answers(client))
        yield port
    finally:
        server.kill()
        server.wait()


class RestartableRedis:
    """A Redis that a test takes away and brings back, with its data, at the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.client = redis.Redis(port=self.port)
        self.start()

    @property
    def url(self) -> str:
        """URL of the database that Lockgate uses."""
        return f"redis://127.0.0.1:{self.port}/7"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._server = subprocess.Popen(
            [redis_program(), "--port", str(self.port), *options],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: _answers(self.client))

    def hang(self) -> None:
        """Let it take connections and give no answer until `resume`."""
        self._server.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again."""
        self._server.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once."""
        self._server.kill()
        self._server.wait()


def _answers(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError, redis.exceptions.BusyLoadingError):
        return bool(client.ping())
    return False
