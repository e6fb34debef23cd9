"""Airflow runs the recovery DAGs: of jobs in the registry, and of files whose writers were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from lockgate import open_job
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.files.home_files import open_files
from lockgate.workers.broker.embedded_broker import find_broker
from tests.support.airflow.home import Airflow, airflow
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import write

__all__ = ["airflow"]

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(900)]

SHORT_LEASES = {
    "LOCKGATE_LEASE_RENEW_S": "0.2",
    "LOCKGATE_LEASE_SOFT_S": "0.4",
    "LOCKGATE_LEASE_HARD_S": "0.8",
    "LOCKGATE_COMMIT_WINDOW_S": "0.5",
}
WRITER = """
import time
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.settings import load_settings

with open_files(load_settings(), writes=True) as files:
    writer = files.create("/events.log")
    writer.write(b"flushed")
    writer.flush()
    print("flushed", flush=True)
    time.sleep(600)
"""


def opened(airflow: Airflow, place: str, name: str) -> Job:
    job = open_job(str(airflow.root / place), name, settings=airflow.settings)
    write(job, "t", {"a.txt": b"1"})
    return job


def test_the_dag_settles_expired_jobs_of_every_destination_on_the_workers(airflow: Airflow) -> None:
    lapsed = opened(airflow, "lake/sales", "lapsed")
    lapsed.suspend(0)
    suspended = opened(airflow, "lake/sales", "suspended")
    suspended.suspend()
    decided = opened(airflow, "lake/logs", "decided")
    die_at("complete.complete.before", decided.commit)
    broker = find_broker(airflow.settings)
    assert broker is not None

    run = airflow.home.run("job_recovery", {}, environment={"LOCKGATE_BROKER_URL": broker.url})

    log = run.log.read_text()
    assert run.state == "success", log[-5000:]
    assert run.tasks["recover"].returned == [{"abort": 1, "roll forward": 1, "suspended": 1}]
    assert [job.phase() for job in (lapsed, decided, suspended)] == [
        JobPhase.FAILED,
        JobPhase.COMMITTED,
        JobPhase.OPEN,
    ]
    assert "recovery: 2 of 2" in log
    assert f"lapsed-g1   {lapsed.destination}" in log
    assert "lockgate.recover_job" in (airflow.root / "worker.log").read_text()


def test_a_job_that_needs_an_operator_fails_the_dag_after_the_others_are_settled(
    airflow: Airflow,
) -> None:
    damaged, lapsed = opened(airflow, "lake/damaged", "damaged"), opened(airflow, "lake/damaged", "other")
    damaged.store.create(f"_lockgate/jobs/{damaged.job_id}/COMMIT_STARTED", b"?")
    damaged.close()
    damaged.store.delete(f"_lockgate/jobs/{damaged.job_id}/lease.json")
    lapsed.suspend(0)

    run = airflow.home.run("job_recovery", {"destinations": damaged.destination})

    assert run.state == "failed"
    assert "1 jobs need attention" in run.log.read_text()
    assert lapsed.phase() is JobPhase.FAILED


def test_the_dag_closes_a_file_whose_writer_was_killed_at_its_flushed_length(airflow: Airflow) -> None:
    environment = {**os.environ, **SHORT_LEASES, "LOCKGATE_HOME": str(airflow.settings.home_dir)}
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == b"flushed\n"
        finally:
            writer.send_signal(signal.SIGKILL)
    with open_files(airflow.settings, writes=False) as files:
        assert files.status("/events.log").is_open

    run = airflow.home.run("lease_recovery", {}, environment=SHORT_LEASES)

    log = run.log.read_text()
    assert run.state == "success", log[-5000:]
    assert run.tasks["recover"].returned == [{"recovered": 1, "removed_blocks": 0}]
    assert "/events.log: closed at 7 bytes" in log
    with open_files(airflow.settings, writes=False) as files:
        assert not files.status("/events.log").is_open
        assert files.open("/events.log").read() == b"flushed"
