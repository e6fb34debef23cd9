"""What blobs promise, in whatever order clients, deaths, outages and time come; on both databases.

The same examples on every machine. `LOCKGATE_TEST_LONG=1` draws many more, and others each time;
`LOCKGATE_TEST_NO_SHRINK=1` tells the first failure as it was found.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model_blobs.machine import BlobsMachine
from tests.postgres_world import Server

IS_LONG: Final = bool(os.environ.get("LOCKGATE_TEST_LONG"))


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has that: nothing here is to outlive the test, and syncs take long."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as root:
        yield Path(root)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries of a transaction no time passes; and here processes die, not machines."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.setattr(os, "fsync", lambda file: None)


def examples(number: int) -> settings:
    return settings(
        derandomize=not IS_LONG,
        max_examples=20 * number if IS_LONG else number,
        stateful_step_count=60 if IS_LONG else 40,
        deadline=None,
        database=None,
        phases=[Phase.generate] if os.environ.get("LOCKGATE_TEST_NO_SHRINK") else tuple(Phase),
        suppress_health_check=list(HealthCheck),
    )


def test_blobs_are_kept_and_go_as_the_model_says(tmp_path: Path) -> None:
    of = {"url": f"sqlite:///{tmp_path / 'journal.db'}", "path": tmp_path}
    run_state_machine_as_test(type("Machine", (BlobsMachine,), of), settings=examples(40))


@pytest.mark.requires("postgres")
def test_blobs_are_kept_and_go_as_the_model_says_on_postgresql(postgres: Server, tmp_path: Path) -> None:
    of = {"url": postgres.new_database("model_blobs"), "path": tmp_path}
    run_state_machine_as_test(type("Machine", (BlobsMachine,), of), settings=examples(6))
