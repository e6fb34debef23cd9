"""`lockgate jobs log`: the log of a job, also from another process while the job runs."""

from __future__ import annotations

import json
import subprocess
import sys

from msgspec import structs

from lockgate import open_job
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.event_log import event_queue
from lockgate.storage_core.settings import Settings
from tests.support.cli import Run, committed_job, document, write

MAIN = "from lockgate.storage_core.cli.root_command import main; main()"


def test_the_log_of_an_ended_job_is_printed(logged: Settings, destination: str, run: Run) -> None:
    job = committed_job(destination, logged)
    event_queue.close_event_logs()

    shown = run("jobs", "log", "sales").stdout
    assert [line.partition("  ")[2].split("  ")[1] for line in shown.splitlines()[:2]] == [
        "opened",
        "task part-0 committed: 1 files, 4 bytes",
    ]
    found = document(run("jobs", "log", destination, job.job_id, "--json"))
    assert found["job_id"] == job.job_id
    assert [file["state"] for file in found["files"]] == ["closed"]
    assert [line["event"] for line in found["lines"]][-2:] == ["phase", "closed"]


def test_a_job_without_a_log_says_so(logged: Settings, destination: str, run: Run) -> None:
    committed_job(destination, structs.replace(logged, job_log=False))
    assert run("jobs", "log", "sales").stdout == "the job has no event log\n"
    assert run("jobs", "log", destination, "other").exit_code == ObjectNotFoundError.exit_code


def test_another_process_follows_a_job_until_it_has_ended(logged: Settings, destination: str) -> None:
    job = open_job(destination, "sales", settings=logged)
    command = [sys.executable, "-c", MAIN, "jobs", "log", "-f", job.job_id, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert "opened" in follower.stdout.readline()
        write(job)
        assert "part-0" in follower.stdout.readline()  # before the job's end
        job.commit()
        rest = follower.stdout.read().splitlines()
        assert follower.wait(60) == 0
    assert any("committed" in line for line in rest)
    assert [json.loads(line)["event"] for line in rest][-2:] == ["phase", "closed"]
