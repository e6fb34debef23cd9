"""Fixtures of the tests of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.files.replicas import comparison, replica_check
from tests.support.files.file_world import FileWorld
from tests.support.journal.checkpoints import JournalWorld


@pytest.fixture
def world(journals: JournalWorld, tmp_path: Path) -> Iterator[FileWorld]:
    """Yield a journal and three volumes, without a file."""
    with FileWorld(journals, tmp_path) as world:
        yield world


@pytest.fixture
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a check read so many replicas at once."""
    for module in (comparison, replica_check):
        monkeypatch.setattr(module, "PAGE", request.param)
    return request.param
