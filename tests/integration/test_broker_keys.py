"""Tests of a Redis that Lockgate shares with another Celery application."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.workers.broker.broker_keys import DATABASE, refuse_foreign_keys, with_database
from lockgate.workers.broker.embedded_broker import broker_url
from lockgate.workers.celery_app import QUEUES, app
from tests.support.workers import neighbour
from tests.support.workers.celery_worker import connect_again, embedded_broker, wait_until, worker_process
from tests.support.workers.redis_server import redis_with_one_database

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Yield settings of a real Redis, which redelivers Lockgate's tasks after a second."""
    with embedded_broker(tmp_path_factory.mktemp("home"), LOCKGATE_REDELIVERY_S="1") as settings:
        yield settings


@pytest.fixture
def client(shared: Settings) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker_url(shared)) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def guest(shared: Settings) -> Iterator[Celery]:
    """Yield another application in the same database, without a prefix, as Celery is by default."""
    guest = Celery("guest", broker=broker_url(shared), set_as_current=False)
    guest.conf.update(task_default_queue="reports", broker_transport_options={"visibility_timeout": 3_600})
    yield guest
    guest.close()


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables for Lockgate's application during the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        connect_again()
        yield
    connect_again()


@pytest.fixture
def in_prefix(client: redis.Redis, request: pytest.FixtureRequest) -> Iterator[str]:
    """Let Lockgate use another prefix."""
    with environment(LOCKGATE_BROKER_PREFIX=request.param):
        yield request.param


@pytest.mark.soak
def test_a_long_task_of_another_application_is_not_begun_again(
    shared: Settings, client: redis.Redis, tmp_path: Path
) -> None:
    from tests.support.workers.lingering_tasks import linger

    url = broker_url(shared)
    with (
        worker_process(
            tmp_path / "neighbour.log",
            name="neighbour",
            queues=[neighbour.QUEUE],
            application="tests.support.workers.neighbour",
            environment={"NEIGHBOUR_URL": url},
        ),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setitem(neighbour.app.conf, "broker_url", url)
        neighbour.linger.apply_async([str(tmp_path)])
        wait_until(lambda: neighbour.begun(tmp_path, "neighbour") == 1)
        with worker_process(tmp_path / "log", application="tests.support.workers.lingering_tasks"):
            linger.apply_async([str(tmp_path)])
            # Lockgate has redelivered its own task, begun later, so its search has passed the neighbour's.
            wait_until(lambda: neighbour.begun(tmp_path, "lockgate") >= 2)
            waiting = client.llen(neighbour.QUEUE)
            (tmp_path / "enough").touch()
            wait_until(lambda: bool(client.keys("lockgate:celery-task-meta-*")))
    neighbour.app.close()
    assert (neighbour.begun(tmp_path, "neighbour"), waiting) == (1, 0)
    assert client.keys("celery-task-meta-*") == []


def test_every_key_of_the_broker_and_of_results_has_the_prefix(client: redis.Redis) -> None:
    app.send_task("lockgate.sweep_blobs", [True, None], queue=QUEUES[0])
    with app.connection_for_read() as connection:
        assert connection.default_channel.basic_get(QUEUES[0]) is not None  # it is not acknowledged
        keys = {key.decode() for key in client.scan_iter()}
    assert {key for key in keys if not key.startswith("lockgate:")} == set()
    assert "lockgate:unacked" in keys
    assert app.backend.get_key_for_task("a-task") == b"lockgate:celery-task-meta-a-task"


@pytest.mark.parametrize("in_prefix", ["", "shared:"], indirect=True)
@pytest.mark.parametrize("state", ["idle", "waiting", "running"])
def test_a_worker_is_refused_where_another_application_has_keys(
    guest: Celery, client: redis.Redis, in_prefix: str, state: str
) -> None:
    guest.conf.broker_transport_options["global_keyprefix"] = in_prefix
    queue = "commit" if state == "waiting" else "reports"
    with guest.connection_for_write() as connection:
        if state == "idle":
            guest.amqp.queues["reports"](connection.default_channel).declare()
        else:
            guest.send_task("guest.long", ["x"], queue=queue, connection=connection)
        if state == "running":
            connection.default_channel.basic_get(queue)
            client.delete(f"{in_prefix}_kombu.binding.reports")
        with pytest.raises(InvalidInputError, match="LOCKGATE_BROKER_PREFIX") as refused:
            refuse_foreign_keys(app)
    assert ("queue reports" if state == "idle" else "task guest.long") in str(refused.value)


def test_a_worker_starts_beside_an_application_with_other_keys(guest: Celery, client: redis.Redis) -> None:
    guest.send_task("guest.long", ["x"])
    with guest.connection_for_read() as connection:
        connection.default_channel.basic_get("reports")
        refuse_foreign_keys(app)
        assert client.hlen("unacked") == 1
    refuse_foreign_keys(app)


def test_names_of_a_workers_own_application_are_known_to_workers_that_lack_them(client: redis.Redis) -> None:
    client.sadd("lockgate:_kombu.binding.special", "special")
    with pytest.raises(InvalidInputError, match="queue special"):
        refuse_foreign_keys(app)
    app.amqp.queues.add("special")
    refuse_foreign_keys(app)
    app.amqp.queues.pop("special")
    refuse_foreign_keys(app)


def test_a_refused_worker_ends_with_the_reason(client: redis.Redis, shared: Settings) -> None:
    client.sadd("lockgate:_kombu.binding.reports", "reports")
    command = [sys.executable, "-m", "celery", "-A", "lockgate.workers", "worker", "-P", "solo", "-l", "INFO"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "error: broker: another Celery application uses keys lockgate:*" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_a_redis_without_lockgates_own_database_is_reported(tmp_path: Path) -> None:
    with (
        redis_with_one_database(tmp_path) as port,
        environment(LOCKGATE_BROKER_URL=f"redis://127.0.0.1:{port}"),
        pytest.raises(InvalidInputError, match="redis://host:port/0"),
    ):
        refuse_foreign_keys(app)


def test_a_redis_user_who_may_only_touch_keys_of_the_prefix_can_start_a_worker(tmp_path: Path) -> None:
    with redis_with_one_database(tmp_path) as port, redis.Redis(port=port) as admin:
        may = {"keys": ["lockgate:*"], "channels": ["*"], "categories": ["+@all"]}
        admin.acl_setuser("lockgate", enabled=True, passwords=["+secret"], **may)
        admin.sadd("lockgate:_kombu.binding.reports", "reports")
        with environment(LOCKGATE_BROKER_URL=f"redis://lockgate:secret@127.0.0.1:{port}/0"):
            with pytest.raises(InvalidInputError, match="queue reports"):
                refuse_foreign_keys(app)
            admin.delete("lockgate:_kombu.binding.reports")
            refuse_foreign_keys(app)


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("redis://h", f"redis://h/{DATABASE}"),
        ("redis://:p@h:6380/", f"redis://:p@h:6380/{DATABASE}"),
        ("rediss://h:1?ssl_cert_reqs=none", f"rediss://h:1/{DATABASE}?ssl_cert_reqs=none"),
        ("redis://h/0", "redis://h/0"),
        ("redis+socket:///tmp/r.sock?virtual_host=2", "redis+socket:///tmp/r.sock?virtual_host=2"),
        ("memory://", "memory://"),
    ],
)
def test_a_url_without_a_database_gets_one_of_its_own(url: str, used: str) -> None:
    assert with_database(url) == used


@pytest.mark.parametrize("prefix", ["lockgate", "a b:", "teamä"])
def test_a_prefix_that_results_would_not_share_is_refused(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_BROKER_PREFIX", prefix)
    with pytest.raises(InvalidInputError, match="LOCKGATE_BROKER_PREFIX"):
        load_settings()
