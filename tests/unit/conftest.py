from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from storage_core.cli.app import build
from storage_core.journal.configured import close_journals
from storage_core.settings import Settings
from tests.cli_world import Run
from tests.commit_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty local destination."""
    return World(tmp_path, str(tmp_path / "dest"))


@pytest.fixture
def journal_world(world: World) -> Iterator[World]:
    """An empty local destination whose jobs have their leases in a journal."""
    yield world.with_journal()
    close_journals()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the environment says, with a home of this test's own."""
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOCKGATE_DEBUG", raising=False)
    return Settings()


@pytest.fixture
def destination(tmp_path: Path) -> str:
    """A destination that nobody has written yet."""
    return str(tmp_path / "lake")


@pytest.fixture
def run(settings: Settings) -> Run:
    """Run `lockgate` with arguments."""
    root = build()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(root, list(arguments))

    return run
