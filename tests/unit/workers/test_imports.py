"""What a process imports that sends and receives small tasks: one child process shows it step by step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import json, sys
from lockgate import workers
found = {"the package": "celery" in sys.modules}

import lockgate.workers.tasks
from lockgate.workers.session_token import extract, tokens
extract({})
found["tokens"] = tokens()
app = workers.app
app.send_task("some", ("small",))
heavy = ("sqlalchemy", "lockgate.storage_core.blobs", "lockgate.workers.offload.receiver")
found["a small message"] = [name for name in heavy if name in sys.modules]

worker = app.Worker(pool="solo", hostname="w@h", quiet=True)
found["a worker"] = [step.obj for step in worker.steps if type(step).__name__ == "MetricsStep"]
found["metrics"] = "lockgate.workers.metrics.counts" in sys.modules
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        check=True,
        capture_output=True,
        timeout=120,
        env={"LOCKGATE_HOME": str(home), "LOCKGATE_BROKER_URL": "memory://"},
        cwd=Path(__file__).parents[3],
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_does_not_import_celery(found: dict[str, object]) -> None:
    assert found["the package"] is False


def test_a_process_without_a_journal_sends_small_messages_and_imports_neither_it_nor_blobs(
    found: dict[str, object],
) -> None:
    assert (found["tokens"], found["a small message"]) == ({}, [])


def test_a_worker_without_a_port_serves_and_imports_no_metrics(found: dict[str, object]) -> None:
    assert (found["a worker"], found["metrics"]) == ([None], False)
