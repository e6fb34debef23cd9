"""Fixtures and hooks of all tests: markers for parts that may not be installed, and a summary of counts."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path

import botocore.session
import pytest
from prometheus_client import REGISTRY, Counter

from lockgate.storage_core.blobs.cache.process_cache import close_caches
from lockgate.storage_core.event_log.event_queue import close_event_logs
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.journal.process_journal import close_journals
from tests.support.pgbouncer import pgbouncer_program
from tests.support.postgres import UNSYNCED, Server, postgres_bin, primary
from tests.support.soak import IS_SOAK
from tests.support.table_engines import are_made

Summarise = Callable[[str], None]

# Airflow creates its home on import: keep it out of the home directory of the user who runs the tests.
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="airflow-")
atexit.register(_AIRFLOW_HOME.cleanup)
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME.name

# Tests that set no home share one home and its journal, which is neither the user's nor that of
# another pytest-xdist process.
_HOME = tempfile.TemporaryDirectory(prefix="lockgate-")
atexit.register(_HOME.cleanup)
os.environ["LOCKGATE_HOME"] = _HOME.name

# Thousands of jobs of other tests need no event log. Its own tests turn it on.
os.environ.setdefault("LOCKGATE_JOB_LOG", "false")

# The JVMs of the tests are short-lived, so they run without the optimising compiler. With the archive of
# classes that `make test` writes, a JVM needs half the CPU time. Spark passes these options to a driver.
_SPARK = Path(__file__).parents[1] / ".tools" / "spark"
_JVM_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
if (_SPARK / "classes.jsa").exists():
    _JVM_OPTIONS += [f"-XX:SharedArchiveFile={_SPARK / 'classes.jsa'}"]
    _JVM_OPTIONS += ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
if (_SPARK / "home").exists():
    os.environ.setdefault("SPARK_HOME", str(_SPARK / "home"))
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(_JVM_OPTIONS))


def _has_engine() -> bool:
    need = [Path(__file__).parents[1] / "scripts" / "need", "docker"]
    answer = subprocess.run(need, check=False, capture_output=True)
    return answer.returncode == 0 and shutil.which("debootstrap") is not None


_PARTS: dict[str, tuple[Callable[[], object], str]] = {
    "s3-server": (
        lambda: os.environ.get("LOCKGATE_TEST_S3_URL"),
        "no S3 server: start one with `make s3-server` and set its exports",
    ),
    "postgres": (postgres_bin, "no PostgreSQL server: apt install postgresql"),
    "pgbouncer": (pgbouncer_program, "no pgbouncer: apt install pgbouncer"),
    "docker": (_has_engine, "no Docker engine with Compose, or no debootstrap"),
    "table-engines": (
        are_made,
        "no Spark with Delta and Iceberg: `make table-engines` fetches 780 MB, once",
    ),
}


_ORDER = ("model", "fault", "unit", "contract", "integration")
"""Folders in the order of the run. The models come first, because one file of them is long."""

_DATABASE_IS_THE_SUBJECT = (
    "contract",
    "unit/journal/database",
    "unit/journal/checkpoints/test_pruning",
    "unit/journal/checkpoints/test_restoring",
    "unit/files/test_tree_queries",
)
"""Paths whose tests of a journal run on both databases, the others on SQLite only but in `make soak`."""

_TIMEOUT_S = {"integration": 900, "soak": 14_400}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start one process more than there are cores: some tests wait, for processes, retries or leases."""
    if chosen := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(chosen)
    # Of the cores of a machine, a container may have a few only.
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if IS_SOAK:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S["soak"]), append=False)
        elif item.get_closest_marker("integration") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S["integration"]))
        if _is_twin(item):
            item.add_marker(pytest.mark.soak)
    if not IS_SOAK:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak")])
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


def _place(item: pytest.Item) -> tuple[int, bool]:
    """Return a key by which tests that fork this process come before those that start a JVM in it."""
    folder = _path(item).partition("/")[0]
    starts_jvm = "spark" in getattr(item, "fixturenames", ())
    return _ORDER.index(folder) if folder in _ORDER else -1, starts_jvm


def _is_twin(item: pytest.Item) -> bool:
    """Return whether a test repeats on PostgreSQL what another one proves on SQLite."""
    parameters = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    return parameters.get("journal_url") == "postgres" and not _path(item).startswith(
        _DATABASE_IS_THE_SUBJECT
    )


def _path(item: pytest.Item) -> str:
    """Return the path below `tests`."""
    return item.path.relative_to(Path(__file__).parent).as_posix()


engines_at_collection: set[str] = set()
"""The engines that the modules of the collected tests import."""


def pytest_collection_finish() -> None:
    """Note imported engines, and refuse a collection that starts a broker that nothing would stop."""
    engines_at_collection.update({"airflow", "pyspark"} & sys.modules.keys())
    if Path(_HOME.name, "broker").exists():
        raise pytest.UsageError(
            "collecting the tests started a broker: a test module has a Celery task by name, and pytest "
            "looks at every name; import the module of the task instead"
        )
    gc.freeze()  # a full collection need not go through all modules and tests


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        is_there, word = _PARTS[mark.args[0]]
        if not is_there():
            pytest.skip(word)


@pytest.fixture(autouse=True, scope="session")
def shared_service_models() -> Iterator[None]:
    """Let all boto3 sessions share one loader: each would read and parse S3's service model again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", lru_cache(botocore.session.create_loader))
        yield


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """Start each test like a new process: no open journal, no open cache, all counters at zero."""
    _end_as_a_process()
    for metric in set(REGISTRY._names_to_collectors.values()):
        if getattr(metric, "_labelnames", ()):
            metric.clear()
        elif isinstance(metric, Counter):
            metric.reset()
    yield
    _end_as_a_process()


def _end_as_a_process() -> None:
    try:
        close_caches()
        close_event_logs()
    finally:
        close_journals()


@pytest.fixture(autouse=True)
def enabled_loggers() -> None:
    """Enable Lockgate's loggers in every test: a module imported by another test may have disabled them."""
    _set_level(logging.getLogger(), logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("lockgate") and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            _set_level(logger, logging.NOTSET)


def _set_level(logger: logging.Logger, level: int) -> None:
    """Set a level if it differs, because each setting clears the caches of all loggers: some 0.3 ms."""
    if logger.level != level:
        logger.setLevel(level)


_databases = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Yield a real PostgreSQL server that all tests of a run share; each test has its own database."""
    if postgres_bin() is None:
        pytest.skip(_PARTS["postgres"][1])
    if running := os.environ.get("LOCKGATE_TEST_POSTGRES"):
        root, _, port = running.rpartition(":")
        yield Server(Path(root), int(port))
        return
    # Not below pytest's own directory, which each new run of pytest closes to other users. On disk, because
    # its databases take gigabytes; fsync is off.
    root = tempfile.mkdtemp(prefix="lockgate-postgres-", dir="/var/tmp")
    try:
        with primary(Path(root), **UNSYNCED, max_connections="200") as server:
            yield server
    finally:
        subprocess.run(["rm", "-rf", root], check=True)  # Python takes 20 s for so many files


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.requires("postgres"))])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new, empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.db'}"
    server: Server = request.getfixturevalue("postgres")
    return server.new_database(f"test_{os.getpid()}_{next(_databases)}")


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    """Yield a new journal in a database of each kind."""
    with open_journal(journal_url) as opened:
        yield opened


@pytest.fixture
def summarise(record_property: Callable[[str, object], None]) -> Summarise:
    """Return a function that adds a line to the summary at the end of the run, even if the test passes."""
    return lambda line: record_property("summary", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        f"{report.nodeid.rpartition('/')[2].partition('::')[0]}: {line}"
        for report in terminalreporter.getreports("passed")
        for name, line in report.user_properties
        if name == "summary" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("what the tests counted")
        terminalreporter.write_line("\n".join(lines))
