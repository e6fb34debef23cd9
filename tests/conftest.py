"""What every test of the project stands on: the mark for parts that this machine may lack."""

from __future__ import annotations

import atexit
import os
import tempfile

import pytest

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
