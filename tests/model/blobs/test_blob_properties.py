"""Property tests of blobs on both databases: clients, deaths, outages and time in any order.

`make soak` draws many more examples, see `machine_settings`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.blobs.machine import BlobsMachine
from tests.support.postgres import Server
from tests.support.soak import machine_settings


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory if possible: its files need not outlive the test, and syncs are slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as root:
        yield Path(root)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between retries of a transaction, and syncs: here processes die, not machines."""
    monkeypatch.setattr("lockgate.storage_core.retry.time.sleep", lambda seconds: None)
    monkeypatch.setattr(os, "fsync", lambda file: None)


def examples(number: int) -> settings:
    return machine_settings(number, 40)


def test_blobs_are_kept_and_deleted_as_in_the_model(tmp_path: Path) -> None:
    of = {"url": f"sqlite:///{tmp_path / 'journal.db'}", "path": tmp_path}
    run_state_machine_as_test(type("Machine", (BlobsMachine,), of), settings=examples(10))


@pytest.mark.requires("postgres")
@pytest.mark.soak
def test_blobs_are_kept_and_deleted_as_in_the_model_on_postgresql(postgres: Server, tmp_path: Path) -> None:
    of = {"url": postgres.new_database("model_blobs"), "path": tmp_path}
    run_state_machine_as_test(type("Machine", (BlobsMachine,), of), settings=examples(6))
