from __future__ import annotations

from pathlib import Path

import pytest

from tests.commit_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty local destination."""
    return World(tmp_path, str(tmp_path / "dest"))
