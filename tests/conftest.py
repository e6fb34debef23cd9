"""What every test of the project stands on: the mark for parts that this machine may lack, and a summary."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable

import pytest

Tell = Callable[[str], None]

# Airflow makes its home when it is imported: not in the home of whoever runs the tests.
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="airflow-")
atexit.register(_AIRFLOW_HOME.cleanup)
os.environ.setdefault("AIRFLOW_HOME", _AIRFLOW_HOME.name)

_PARTS = {
    "s3-server": (
        "LOCKGATE_TEST_S3_URL",
        "no S3 server: start one with `make s3-server` and set its exports",
    ),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        variable, word = _PARTS[mark.args[0]]
        if not os.environ.get(variable):
            pytest.skip(word)


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
