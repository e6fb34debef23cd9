"""A task's log file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.storage_core.blobs.logs.log_versions import Log

LOG = Log(name="dag_id=sales/attempt=1.log")


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
