"""Fixtures of the tests of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files.file_world import FileWorld
from tests.support.journal.checkpoints import JournalWorld


@pytest.fixture
def world(journals: JournalWorld, tmp_path: Path) -> Iterator[FileWorld]:
    """Yield a journal and three volumes, without a file."""
    with FileWorld(journals, tmp_path) as world:
        yield world
