"""Airflow's CeleryExecutor and Lockgate's workers in one database of one Redis, while workers are killed.

Both applications acknowledge a message after its task and redeliver it after a visibility timeout, theirs or
Lockgate's being the shorter one. All processes record each message that they take, acknowledge or restore.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from lockgate.storage_core.settings import load_settings
from lockgate.workers.dispatch import commit_tasks
from tests.conftest import Summarise
from tests.support.airflow.pipeline import processes
from tests.support.airflow.services import Services, running_airflow, sure
from tests.support.postgres import Server
from tests.support.workers.celery_worker import StagedJob, connect_again, worker_process
from tests.support.workers.message_records import HOLD, RECORDS, MessageRecord, records
from tests.support.workers.redis_server import redis_with_one_database

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.requires("postgres")]

POOL = 2
"""Processes of each worker."""
AIRFLOW_KEYS = ("default*", "unacked*", "_kombu.binding*", "celery*", "[0-9a-f]*.reply.celery.pidbox*")
"""Keys of Airflow's Celery application. None matches a key that begins with Lockgate's prefix."""


@dataclass
class Shared:
    """Both applications on one Redis.

    Attributes:
        folder: Folder of everything.
        timeouts_s: Visibility timeout of each application.
        airflow: Airflow's API.
        redis: Client of the Redis, as its administrator.
        workers: Session of each worker, by its name.
        killed: Processes of killed workers, and when they were killed.
    """

    folder: Path
    timeouts_s: dict[str, float]
    airflow: Services
    redis: redis.Redis
    workers: dict[str, int]
    killed: dict[int, float] = field(default_factory=dict)

    @property
    def records(self) -> list[MessageRecord]:
        """All records until now."""
        return records(self.folder / "records")

    def of(self, application: str, what: str) -> list[MessageRecord]:
        """Return the records of one kind."""
        return [r for r in self.records if (r.application, r.what) == (application, what)]

    def kill(self, worker: str) -> None:
        """Kill all processes of a worker, also those of its tasks, as the end of its machine does."""
        session = self.workers[worker]
        # Its main process first: it would restore the messages of killed pool processes at once.
        for pid in [session, *(pid for pid in processes() if pid != session == _session(pid))]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.killed[pid] = time.monotonic()

    def let_go(self, application: str) -> None:
        """Let the held tasks of an application end."""
        if application == "lockgate":
            (self.folder / "hold").unlink()
        else:
            (self.folder / "enough").touch()

    def commit_jobs(self, jobs: int) -> list[StagedJob]:
        """Commit the tasks of jobs by Lockgate's workers, then the jobs; return them."""
        done = []
        for number in range(jobs):
            job = StagedJob(self.folder / f"job-{number}", load_settings(), files=30)
            commit_tasks(*job.ids, job.task_ids, timeout_s=1_200, grace_s=60)
            job.attach().commit()
            done.append(job)
        return done


@contextmanager
def shared_redis(root: Path, postgres: Server, lockgate_s: int, airflow_s: int) -> Iterator[Shared]:
    """Run both applications with two workers each until the block ends."""
    with (
        ExitStack() as ends,
        redis_with_one_database(root) as port,
        redis.Redis(port=port) as admin,
        pytest.MonkeyPatch.context() as patch,
    ):
        for user, keys in {"lockgate": ("lockgate:*",), "airflow": AIRFLOW_KEYS}.items():
            admin.acl_setuser(
                user, enabled=True, passwords=["+secret"], keys=keys, channels=["*"], categories=["+@all"]
            )
        lockgate = {
            "LOCKGATE_HOME": str(root / "home"),
            "LOCKGATE_BROKER_URL": f"redis://lockgate:secret@127.0.0.1:{port}/0",
            "LOCKGATE_REDELIVERY_S": str(lockgate_s),
            RECORDS: str(root / "records"),
            HOLD: str(root / "hold"),
        }
        for name, value in lockgate.items():
            patch.setenv(name, value)
        broker = f"redis://airflow:secret@127.0.0.1:{port}/0"
        options = {
            "VISIBILITY_TIMEOUT": airflow_s,
            "UNACKED_RESTORE_INTERVAL": 1,
            "UNACKED_RESTORE_THROTTLE": 1,
        }
        environment = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": broker,
            "AIRFLOW__CELERY__CELERY_CONFIG_OPTIONS": "tests.support.airflow.recorded_celery.CONFIGURATION",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
            **{f"AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__{name}": str(n) for name, n in options.items()},
        }
        connect_again()
        database = postgres.new_database(f"shared_redis_{lockgate_s}_{airflow_s}")
        dags = Path(__file__).parent / "load_dags"
        airflow = ends.enter_context(running_airflow(root, dags, environment, database=database))
        workers = {}
        for name in ("airflow-0", "airflow-1"):
            command = [
                "celery",
                "worker",
                "-c",
                str(POOL),
                "-H",
                name,
                "--skip-serve-logs",
                "--without-gossip",
            ]
            workers[name] = ends.enter_context(
                airflow.process(name, *command, "--pid", str(root / f"{name}.pid"))
            ).pid
        for name in ("lockgate-0", "lockgate-1"):
            worker = worker_process(
                root / f"{name}.log", name=name, application="tests.support.workers.recorded_app"
            )
            workers[name] = ends.enter_context(worker).pid
        yield Shared(root, {"lockgate": lockgate_s, "airflow": airflow_s}, airflow, admin, workers)
    connect_again()


@pytest.mark.parametrize(
    ("lockgate_s", "airflow_s"), [(20, 150), (300, 90)], ids=["lockgate is shorter", "airflow is shorter"]
)
def test_each_task_of_a_killed_worker_runs_again_and_no_other_task_twice(
    tmp_path: Path, postgres: Server, lockgate_s: int, airflow_s: int, summarise: Summarise
) -> None:
    with (
        ThreadPoolExecutor(1) as sender,
        shared_redis(tmp_path, postgres, lockgate_s, airflow_s) as shared,
    ):
        shorter, longer = sorted(shared.timeouts_s, key=lambda name: shared.timeouts_s[name])
        sent = _hold_tasks_of_both(shared, first=longer, sender=sender)
        lost = {name: _runs_of(shared, f"{name}-0") for name in ("lockgate", "airflow")}
        live = {name: _runs_of(shared, f"{name}-1") for name in ("lockgate", "airflow")}
        for name in ("lockgate", "airflow"):
            shared.kill(f"{name}-0")
        shared.let_go(shorter)
        more = shared.airflow.trigger("lingering", _conf(shared, range(10)))
        _restored(shared, shorter)
        # The shorter application has looked for lapsed messages while these ran.
        assert shared.of(longer, "restored") == []
        shared.let_go(longer)
        _restored(shared, longer)
        jobs = sent["lockgate"].result(1_200)
        runs = [sent["airflow"], more]
        assert {shared.airflow.ended_as("lingering", run) for run in runs} == {"success"}

        _check_messages(shared)
        _check_runs(shared, lost, live)
        for job in jobs:
            assert job.visible_rows() == job.all_rows
        assert _refused(shared) == set()
        received = {name: len(shared.of(name, "received")) for name in ("lockgate", "airflow")}
        summarise(f"timeouts {shared.timeouts_s}: {received} messages received, {lost} of killed workers")


def _hold_tasks_of_both(shared: Shared, *, first: str, sender: ThreadPoolExecutor) -> dict[str, Any]:
    """Return the work of each application once it holds all processes of both its workers."""
    (shared.folder / "hold").touch()
    start = {
        "lockgate": lambda: sender.submit(shared.commit_jobs, 3),
        "airflow": lambda: shared.airflow.trigger("lingering", _conf(shared, range(10))),
    }
    sent = {}
    for application in sorted(start, key=lambda name: name != first):
        sent[application] = start[application]()
        sure(partial(_is_busy, shared, application), f"{application} did not begin its tasks")
    return sent


def _is_busy(shared: Shared, application: str) -> bool | None:
    return len(shared.of(application, "begun")) == 2 * POOL or None


def _conf(shared: Shared, numbers: range) -> dict[str, Any]:
    return {"numbers": list(numbers), "enough": str(shared.folder / "enough")}


def _runs_of(shared: Shared, worker: str) -> set[str]:
    """Return the tasks that a worker runs."""
    application, session = worker.partition("-")[0], shared.workers[worker]
    found = {r.task for r in shared.of(application, "begun") if _session(r.pid) == session}
    assert len(found) == POOL, (worker, found)
    return found


def _taken(shared: Shared, application: str) -> list[MessageRecord]:
    """Return what killed workers took and did not acknowledge."""
    done = {(r.pid, r.tag) for r in shared.of(application, "acknowledged")}
    taken = [r for r in shared.of(application, "received") if r.pid in shared.killed]
    return [r for r in taken if (r.pid, r.tag) not in done]


def _restored(shared: Shared, application: str) -> None:
    """Wait until the messages of a killed worker are in their queue again."""
    tags = {r.tag for r in _taken(shared, application)}
    assert len(tags) == POOL
    sure(
        lambda: tags <= {r.tag for r in shared.of(application, "restored")} or None,
        f"{application}'s messages were not restored",
    )


def _check_messages(shared: Shared) -> None:
    """Check that exactly the messages of killed workers were redelivered, after their time, and all ended."""
    for application, timeout_s in shared.timeouts_s.items():
        taken = {r.tag: r for r in _taken(shared, application)}
        restored = {r.tag: r for r in shared.of(application, "restored")}
        assert len(shared.of(application, "restored")) == len(restored)
        assert restored.keys() == taken.keys()
        for tag, record in restored.items():
            assert record.pid not in shared.killed
            # A message's own clock begins just before it is recorded.
            assert record.at_s - taken[tag].at_s > timeout_s - 5

        received: dict[str, list[MessageRecord]] = {}
        for record in shared.of(application, "received"):
            received.setdefault(record.task, []).append(record)
        twice = {task: found for task, found in received.items() if len(found) > 1}
        assert twice.keys() == {record.task for record in taken.values()}
        for found in twice.values():
            first, second = found
            assert first.tag in taken
            assert first.at_s < restored[first.tag].at_s < second.at_s
        sure(
            partial(_all_acknowledged, shared, application, sorted(received)),
            f"not every message of {application} was acknowledged once",
        )


def _all_acknowledged(shared: Shared, application: str, tasks: list[str]) -> bool | None:
    return sorted(record.task for record in shared.of(application, "acknowledged")) == tasks or None


def _check_runs(shared: Shared, lost: dict[str, set[str]], live: dict[str, set[str]]) -> None:
    """Check that a task ran twice if its worker was killed, after that, and once otherwise."""
    for application in shared.timeouts_s:
        begun: dict[str, list[MessageRecord]] = {}
        for record in shared.of(application, "begun"):
            begun.setdefault(record.task, []).append(record)
        assert live[application] <= begun.keys()
        assert {task for task, runs in begun.items() if len(runs) > 1} == lost[application]
        for task in lost[application]:
            first, second = begun[task]
            assert shared.killed[first.pid] < second.at_s
        ended = sorted(record.task for record in shared.of(application, "ended"))
        assert ended == sorted(begun)


def _refused(shared: Shared) -> set[tuple[str, str, str]]:
    """Return what the Redis refused: user, command and key."""
    return {
        (entry["username"], entry["client-info"].get("cmd", ""), entry["object"])
        for entry in shared.redis.acl_log(128)
    }


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None
