"""What every test of the project stands on: the mark for parts that this machine may lack, and a summary."""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.cache.process_cache import close_caches
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.journal.process_journal import close_journals
from tests.postgres_world import Server, postgres_bin, primary

Tell = Callable[[str], None]

# Airflow makes its home when it is imported: not in the home of whoever runs the tests.
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="airflow-")
atexit.register(_AIRFLOW_HOME.cleanup)
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME.name

# Tests that choose no home of their own share one, and its journal: not that of whoever runs them, nor of
# another process that has a part of the tests.
_HOME = tempfile.TemporaryDirectory(prefix="lockgate-")
atexit.register(_HOME.cleanup)
os.environ["LOCKGATE_HOME"] = _HOME.name

_PARTS: dict[str, tuple[Callable[[], object], str]] = {
    "s3-server": (
        lambda: os.environ.get("LOCKGATE_TEST_S3_URL"),
        "no S3 server: start one with `make s3-server` and set its exports",
    ),
    "postgres": (postgres_bin, "no PostgreSQL server: apt install postgresql"),
}


_LONGEST = ("fault", "model_blobs", "model_journal", "model")
"""Folders whose files come first: of two processes that share the tests none waits long for the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (*_LONGEST, item.path.parent.name).index(item.path.parent.name))


def pytest_collection_finish() -> None:
    """Let no look at the tests start a broker, which nobody would stop."""
    if Path(_HOME.name, "broker").exists():
        raise pytest.UsageError(
            "collecting the tests started a broker: a test module has a Celery task by name, and pytest "
            "looks at every name; import the module of the task instead"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        is_there, word = _PARTS[mark.args[0]]
        if not is_there():
            pytest.skip(word)


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """Begin each test as a new process does: it has opened no journal and no cache, and heard of none."""
    _end_as_a_process()
    yield
    _end_as_a_process()


def _end_as_a_process() -> None:
    try:
        close_caches()
    finally:
        close_journals()


@pytest.fixture(autouse=True)
def heard() -> None:
    """Let every test hear what Lockgate says: what another test has imported may silence loggers."""
    logging.getLogger().setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("lockgate") and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)


_databases = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A real PostgreSQL server that many tests share, each with a database of its own."""
    if postgres_bin() is None:
        pytest.skip(_PARTS["postgres"][1])
    # Not below pytest's own directory: each new run of pytest closes that to every other user. And on disk:
    # its databases take gigabytes, and nothing of them is synced.
    with (
        tempfile.TemporaryDirectory(prefix="lockgate-postgres-", dir="/var/tmp") as root,
        primary(Path(root), fsync="off", max_connections="200") as server,
    ):
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.requires("postgres"))])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a new, empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.db'}"
    server: Server = request.getfixturevalue("postgres")
    return server.new_database(f"test_{next(_databases)}")


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    """A new journal in a database of each kind."""
    with open_journal(journal_url) as opened:
        yield opened


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Say something that the summary at the end of the run prints, also when the test passes."""
    return lambda said: record_property("told", said)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        f"{report.nodeid.rpartition('/')[2].partition('::')[0]}: {said}"
        for report in terminalreporter.getreports("passed")
        for name, said in report.user_properties
        if name == "told" and report.when == "call"
    ]
    if told:
        terminalreporter.section("what the tests counted")
        terminalreporter.write_line("\n".join(told))
