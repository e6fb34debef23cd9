"""A real Prometheus reads all processes, answers each query of the dashboard, and its alerts are right."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.workers.dispatch import commit_tasks
from tests.support.cli import lapsed_job
from tests.support.postgres import free_port
from tests.support.processes.blob_server import RUN, server_process
from tests.support.workers.celery_worker import StagedJob, embedded_broker, worker_process

DOCKER = Path(__file__).parents[2] / "docker"
PROMETHEUS = shutil.which("prometheus")
QUIET = ("observer_lag", "sweep|recover")
"""Parts of queries that have no series here: no observers, and no failures."""

Ask = Callable[[str], list[float]]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: prometheus)"),
]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Yield a function that returns the values of a query, of an installation with one lapsed job."""
    root = tmp_path_factory.mktemp("installation")
    journal, worker, web = free_port(), free_port(), free_port()
    with (
        embedded_broker(root / "home") as settings,
        server_process(root, {"LOCKGATE_JOURNAL_URL": f"sqlite:///{settings.home}/journal.db"}) as blobs,
        worker_process(root / "log", environment={"LOCKGATE_WORKER_METRICS_PORT": str(worker)}),
    ):
        lapsed_job(str(root / "lapsed"), settings, "lapsed")
        staged = StagedJob(root, settings)
        commit_tasks(*staged.ids, staged.task_ids)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCKGATE_BLOB_SERVER_URL", blobs.url)
            from lockgate.storage_core.settings import load_settings

            with open_blobs(load_settings()) as client:
                client.put(b"unneeded")
        targets = [f"127.0.0.1:{journal}", f"127.0.0.1:{worker}", blobs.url.rpartition("/")[2]]
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(DOCKER / "prometheus" / "rules.yml")],
            "scrape_configs": [{"job_name": "lockgate", "static_configs": [{"targets": targets}]}],
        }
        (root / "prometheus.json").write_text(json.dumps(configuration))
        metrics = subprocess.Popen([sys.executable, "-c", RUN, "journal", "metrics", "--port", str(journal)])
        prometheus = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={root}/prometheus.json",
                f"--storage.tsdb.path={root}/tsdb",
                f"--web.listen-address=127.0.0.1:{web}",
                "--log.level=error",
            ]
        )

        def query(expression: str) -> list[float]:
            text = expression.replace("$journal", ".*").replace("$__rate_interval", "10s")
            with urlopen(f"http://127.0.0.1:{web}/api/v1/query?{urlencode({'query': text})}") as answer:
                result = json.load(answer)["data"]["result"]
            return [float(one["value"][1]) for one in result]

        try:
            until(lambda: query('sum(up{job="lockgate"})') == [3.0])
            time.sleep(5)  # rates need several scrapes
            yield query
        finally:
            for process in (prometheus, metrics):
                process.terminate()
                process.wait(30)


def until(is_so: Callable[[], bool], within_s: float = 60) -> None:
    end_s = time.monotonic() + within_s
    while True:
        try:
            if is_so():
                return
        except OSError:  # it does not listen yet
            pass
        assert time.monotonic() < end_s
        time.sleep(0.5)


def test_every_query_of_the_dashboard_has_an_answer(ask: Ask) -> None:
    panels = json.loads((DOCKER / "grafana" / "lockgate.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) > 20
    empty = [one for one in queries if not ask(one)]
    assert [one for one in empty if not any(quiet in one for quiet in QUIET)] == []


@pytest.mark.parametrize(
    ("query", "figure"),
    [
        ('lockgate_jobs_need_you{why="undecided"}', 1),
        ("sum(lockgate_jobs_need_you)", 1),
        ('lockgate_jobs{phase="open"}', 2),
        ("lockgate_destinations_blocked", 0),
        ("lockgate_jobs_oldest_decided_seconds", 0),
        ("lockgate_journal_safe_mode", 0),
        ("lockgate_journal_checkpoint_timestamp_seconds", 0),
        ("sum(lockgate_queue_length)", 0),
        ('lockgate_worker_task_seconds_count{task="lockgate.commit_task",outcome="success"}', 6),
        ('lockgate_blobs_requests_total{verb="put",outcome="ok"}', 1),
        ('count(ALERTS{alertname="LockgateJobNeedsYou"})', 1),
        ('count(ALERTS{alertstate="firing"}) or vector(0)', 0),
    ],
)
def test_the_figures_are_true(ask: Ask, query: str, figure: float) -> None:
    assert ask(query) == [figure]


def test_a_blob_without_a_reference_grows_older(ask: Ask) -> None:
    (age_s,) = ask('lockgate_blobs_oldest_seconds{state="unreferenced"}')
    assert 0 < age_s < 600
