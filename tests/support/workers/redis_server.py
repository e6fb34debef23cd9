"""A Redis of a test's own, with one database."""

from __future__ import annotations

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


def _answers(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False
