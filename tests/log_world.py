"""A task's log as a file, and a blob server that it is published to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.logs.versions import Log
from tests.blob_world import BlobWorld, blob_world

LOG = Log(name="dag_id=sales/attempt=1.log")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    """A blob server, alone."""
    with blob_world(tmp_path, with_ha=False) as world:
        yield world


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A log with one line."""
    path = tmp_path / "attempt=1.log"
    path.write_bytes(b"first\n")
    return path


def append(file: Path, data: bytes) -> None:
    """Let a task write to its log."""
    with file.open("ab") as opened:
        opened.write(data)
