"""Airflow, its workers and Lockgate's worker on one Redis and one PostgreSQL, killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from pyarrow import parquet

from examples.flights.processes.airflow_home import AirflowHome
from examples.flights.processes.children import ended
from examples.flights.processes.worker import running_broker
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from lockgate.workers.broker.embedded_broker import broker_url
from tests.support.airflow.services import Services, quoted, sure
from tests.support.postgres import Server, free_port
from tests.support.s3 import real_server
from tests.support.s3.holding_proxy import HoldingProxy
from tests.support.spark.cluster import CLUSTER_CONFIG, standalone_cluster

Executor = Literal["LocalExecutor", "CeleryExecutor"]
Way = Literal["staged", "spark", "cluster"]
"""`cluster`: by `spark` on a standalone cluster, whose executors share no directory with the driver."""
Service = Literal["api-server", "scheduler", "triggerer", "airflow-worker", "lockgate-worker"]

DAG = "dataset_commit"
JARS = Path(__file__).parents[3] / ".tools" / "ivy" / "jars"
"""Of hadoop-aws, if `make s3a-jars` has fetched it."""
ON_THE_CLUSTER = {
    **CLUSTER_CONFIG,
    "spark.speculation": "false",
    # Its own 686 MB are not sent to each executor.
    "spark.driver.extraClassPath": f"{JARS}/*",
    "spark.executor.extraClassPath": f"{JARS}/*",
}
"""Spark's settings for a run on a cluster."""
ROWS = 30
PARTS = 3


@dataclass
class Pipeline:
    """A running Airflow and what the DAG `dataset_commit` needs.

    Attributes:
        services: Airflow's REST API and commands.
        executor: Executor of all tasks.
        via: Way of the rows.
        root: Folder of everything that is on this machine.
        settings: Settings of every process.
        database: PostgreSQL server of Airflow's database and of the journal.
        s3: Proxy that all processes reach S3 through.
        commands: Command of each service.
        master: Spark's master; None: Spark runs in the child of each task.
        destinations: Those of all runs.
        kills: How many processes and services were killed.
    """

    services: Services
    executor: Executor
    via: Way
    root: Path
    settings: Settings
    database: Server
    s3: HoldingProxy
    commands: Mapping[str, list[str]]
    master: str | None = None
    destinations: list[str] = field(default_factory=list)
    kills: int = 0
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _sessions: set[int] = field(default_factory=set)
    _ends: ExitStack = field(default_factory=ExitStack)

    def start(self, service: Service) -> None:
        """Start a service; its output is added to its file."""
        with (self.root / f"{service}.log").open("ab") as output:
            process = self._ends.enter_context(
                subprocess.Popen(
                    self.commands[service],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.services.environment},
                    start_new_session=True,
                )
            )
        self._ends.enter_context(ended(process))
        self._running[service] = process
        self._sessions.add(process.pid)

    def restart(self, service: Service, *, tasks: bool = False) -> None:
        """Kill a service and start it again, as a supervisor does; arguments as for `kill`."""
        self.kill(service, tasks=tasks)
        self.start(service)

    def kill_process(self, pid: int) -> None:
        """Kill one process."""
        os.kill(pid, signal.SIGKILL)
        self.kills += 1

    def crash_database(self) -> None:
        """Let the PostgreSQL server crash, and start it again."""
        self.database.stop("immediate")
        self.kills += 1
        self.database.start()

    def kill(self, service: Service, *, tasks: bool = False) -> None:
        """Kill a service with the pool that it has forked.

        Args:
            service: A running service.
            tasks: Kill its tasks, too, which lead process groups of their own: the end of its machine.
        """
        process = self._running.pop(service)
        self.kills += 1
        for pid in processes() if tasks else ():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def trigger(self, name: str, **conf: Any) -> tuple[str, str]:
        """Start a run that writes thirty rows to a new destination; return that and the run's id.

        Spark reads them from S3 if hadoop-aws is there.
        """
        source = f"{real_server.new_url()}-source" if JARS.exists() else str(self.root / f"{name}-source")
        for file in range(2):  # a task of Spark for each
            rows = (json.dumps({"row": n, "part": n % PARTS}) for n in range(file, ROWS, 2))
            open_store(source, self.settings).put(f"rows-{file}.json", "\n".join(rows).encode())
        destination = f"{real_server.new_url()}/{name}"
        self.destinations.append(destination)
        fixed = {
            "source": source,
            "source_format": "json",
            "destination": destination,
            "via": "staged" if self.via == "staged" else "spark",
            "partition_by": ["part"],
            "master": self.master,
            "spark_config": None if self.master is None else ON_THE_CLUSTER,
        }
        return destination, self.services.trigger(DAG, {**fixed, **conf})

    def executors(self) -> list[int]:
        """Return the process ids of the cluster's executors, once there is one."""

        def found() -> list[int] | None:
            lines = processes()
            return [pid for pid, line in lines.items() if "CoarseGrainedExecutorBackend" in line] or None

        return sure(found, "no executor runs")

    def runner(self, run_id: str, task_id: str) -> int:
        """Return the process id of a running task, once it runs."""
        path = f"dags/{DAG}/dagRuns/{quoted(run_id)}/taskInstances/{task_id}"

        def found() -> int | None:
            title = f"airflow worker -- {self.services.call('GET', path)['id']}"
            return next((pid for pid, line in processes().items() if line.startswith(title)), None)

        return sure(found, f"{task_id} does not run")

    def tries(self, run_id: str, task_id: str) -> int:
        """Return how often a task has been tried."""
        path = f"dags/{DAG}/dagRuns/{quoted(run_id)}/taskInstances/{task_id}"
        return int(self.services.call("GET", path)["try_number"])

    def ended_as(self, run_id: str) -> str:
        """Return the state of a run of `dataset_commit`, once it has ended; the API may be away meanwhile."""

        def state() -> str | None:
            for service in [name for name, process in self._running.items() if process.poll() is not None]:
                self.start(service)  # type: ignore[arg-type]
            with suppress(OSError, AssertionError):
                found = self.services.call("GET", f"dags/{DAG}/dagRuns/{quoted(run_id)}")["state"]
                return found if found in {"success", "failed"} else None
            return None

        return sure(state, f"{run_id} did not end")

    def asset_events(self, destination: str) -> list[dict[str, Any]]:
        """Return `extra` of each event of a destination's Asset."""
        events = self.services.call("GET", "assets/events?limit=1000")["asset_events"]
        return [e["extra"] for e in events if e["extra"].get("destination") == destination]

    def visible_rows(self, destination: str) -> list[int]:
        """Return every row of every live file, sorted: a row that was committed twice appears twice."""
        store = open_store(destination, self.settings)
        rows: list[int] = []
        for key in read_manifest(destination, settings=self.settings).files:
            rows += parquet.ParquetFile(BytesIO(store.get(key))).read().column("row").to_pylist()
        return sorted(rows)

    def left(self, destination: str) -> dict[str, list[str]]:
        """Return what a finished run must not leave, such as files that no manifest names."""
        store = open_store(destination, self.settings)
        listed = {info.key for page in store.pages() for info in page if not info.key.startswith("_")}
        tasks = re.compile(r"spark_process\.child|/java\b|airflow worker -- [0-9a-f]{8}-")
        found = {pid: line for pid, line in processes().items() if tasks.search(line)}
        left = {
            "processes": [line for pid, line in found.items() if self._is_mine(pid)],
            "staged": [str(path) for path in (self.root / "home" / "staging").glob("*")],
            "files": sorted(listed ^ set(read_manifest(destination, settings=self.settings).files)),
            "jobs": [j.job_id for j in list_jobs(destination, settings=self.settings) if j.needs_recovery],
        }
        return {what: found for what, found in left.items() if found}

    def _is_mine(self, pid: int) -> bool:
        """Return whether a process was started by a service, perhaps by one that has died."""
        with suppress(OSError):
            return (
                os.getsid(pid) in self._sessions
                or os.fsencode(self.root) in Path(f"/proc/{pid}/environ").read_bytes()
            )
        return False

    def open_uploads(self) -> list[str]:
        """Return the open uploads at all destinations."""
        stores = (open_store(destination, self.settings) for destination in self.destinations)
        return [upload.key for store in stores for page in store.upload_pages() for upload in page]


@contextmanager
def running_pipeline(
    root: Path, executor: Executor, via: Way, database: Server, s3: HoldingProxy
) -> Iterator[Pipeline]:
    """Run all services until the block ends. The environment names the S3 server."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    journal = database.new_database(f"journal_{executor.lower()}_{via}")
    metadata = database.new_database(f"airflow_{executor.lower()}_{via}").replace("://", "+psycopg://")
    home = AirflowHome(root / "airflow")
    embedded = load_settings(home=root / "home")
    with running_broker(embedded), ExitStack() as cluster, ExitStack() as ends:
        broker = broker_url(embedded)
        settings = load_settings(home=root / "home", journal_url=journal, broker_url=broker)
        environment = {
            **home._settings(),
            "LOCKGATE_HOME": str(settings.home),
            "LOCKGATE_JOURNAL_URL": journal,
            "LOCKGATE_BROKER_URL": broker,
            "LOCKGATE_REDELIVERY_S": "10",
            "LOCKGATE_TRIGGER_SOURCES": json.dumps([str(root), os.environ["LOCKGATE_TEST_S3_URL"]]),
            **({"LOCKGATE_SPARK_S3_JARS": str(_jars(root, via))} if JARS.exists() else {}),
            **({"LOCKGATE_TRIGGER_SPARK": '["spark.*=*"]'} if via == "cluster" else {}),
            "LOCKGATE_TRIGGER_DESTINATIONS": json.dumps([os.environ["LOCKGATE_TEST_S3_URL"]]),
            "LOCKGATE_TRIGGER_TRANSFORMS": json.dumps(["tests.support.airflow.held_frame:held_frame"]),
            "LOCKGATE_RECOVERY_MINUTES": "1440",  # a test runs it
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": metadata,
            "AIRFLOW__CORE__EXECUTOR": executor,
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of a test " * 4,
            "AIRFLOW__API__SECRET_KEY": "another secret of a test",
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": broker,
            # Airflow's own limits for the dead, which are minutes.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
        }
        services = Services(home, url, environment, root)
        home.path.mkdir(mode=0o700)
        pipeline = Pipeline(
            services=services,
            executor=executor,
            via=via,
            root=root,
            settings=settings,
            database=database,
            s3=s3,
            commands=_commands(port),
            master=cluster.enter_context(standalone_cluster(root)) if via == "cluster" else None,
            _ends=ends,
        )
        services.command(sys.executable, "-m", "airflow", "db", "migrate")
        services.command(sys.executable, "-m", "airflow", "dags", "reserialize")
        pipeline.start("api-server")
        pipeline.start("scheduler")
        pipeline.start("triggerer")
        pipeline.start("lockgate-worker")
        if executor == "CeleryExecutor":
            pipeline.start("airflow-worker")
        sure(answers(services), f"the API server did not begin; see {root}/api-server.log")
        yield pipeline


def _jars(root: Path, via: Way) -> Path:
    """Return a folder with the jars that Spark sends to executors: of a cluster, hadoop-aws only."""
    if via != "cluster":
        return JARS
    (root / "jars").mkdir()
    (jar,) = JARS.glob("*hadoop-aws-3*")
    (root / "jars" / jar.name).symlink_to(jar)
    return root / "jars"


def _commands(port: int) -> dict[str, list[str]]:
    airflow = [sys.executable, "-m", "airflow"]
    celery = [sys.executable, "-m", "celery", "-A", "lockgate.workers", "worker", "-c", "2", "-l", "INFO"]
    return {
        "api-server": [*airflow, "api-server", "--port", str(port), "--workers", "1"],
        "scheduler": [*airflow, "scheduler"],
        "triggerer": [*airflow, "triggerer", "--skip-serve-logs"],
        "airflow-worker": [*airflow, "celery", "worker", "-c", "2", "--skip-serve-logs", "--without-gossip"],
        "lockgate-worker": [*celery, "-Q", "commit,recovery,sweep", "--without-gossip", "--without-mingle"],
    }


def answers(services: Services) -> Callable[[], bool | None]:
    """Return a function that returns True if the API server answers, else None."""

    def ask() -> bool | None:
        try:
            return bool(services.call("GET", "version"))
        except (OSError, AssertionError):
            return None

    return ask


def processes() -> dict[int, str]:
    """Return the command line of each process, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(path.name)] = (
                (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
    return found


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
