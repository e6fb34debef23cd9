"""Each test of an operator has a home of its own, and a job whose tasks workers have yet to commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import load_settings
from tests.support.workers.celery_worker import StagedJob


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    yield tmp_path
    FAILPOINTS.arm({})


@pytest.fixture
def staged(home: Path) -> StagedJob:
    """Return a job with six staged tasks."""
    return StagedJob(home, load_settings())
