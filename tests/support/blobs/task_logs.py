"""A task's log file and a blob server to which it is published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.logs.log_versions import Log
from tests.support.blobs.server import BlobWorld, blob_world

LOG = Log(name="dag_id=sales/attempt=1.log")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    """Yield a blob server without other parts."""
    with blob_world(tmp_path, with_ha=False) as world:
        yield world


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a log file with one line."""
    path = tmp_path / "attempt=1.log"
    path.write_bytes(b"first\n")
    return path


def append(file: Path, data: bytes) -> None:
    """Append to a log like its task."""
    with file.open("ab") as opened:
        opened.write(data)
