"""What every test of the project stands on: the mark for parts that this machine may lack."""

from __future__ import annotations

import os

import pytest

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
