from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from lockgate.storage_core.cli.root_command import build
from lockgate.storage_core.journal import Journal, Leases, open_journal
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.cli import Run
from tests.support.commit.destination import ManualClock, World
from tests.support.journal.checkpoints import JournalWorld
from tests.support.postgres import Server

if TYPE_CHECKING:
    from tests.support.workers.third_party_app import Guest


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return an empty local destination."""
    return World(tmp_path, str(tmp_path / "dest"))


@pytest.fixture
def journal_world(world: World) -> World:
    """Return an empty local destination whose jobs have their leases in a journal."""
    return world.with_journal()


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test advances."""
    return ManualClock()


@pytest.fixture
def timed_journal(journal_url: str, clock: ManualClock) -> Iterator[Journal]:
    """Return a new journal in a database of each kind, with the test's clock."""
    with open_journal(journal_url, clock=clock) as opened:
        yield opened


@pytest.fixture
def leases(timed_journal: Journal) -> Leases:
    """Return the leases of that journal."""
    return Leases(timed_journal)


@pytest.fixture
def journals(journal_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> JournalWorld:
    """Return an empty journal on each kind of database, with a spare database beside it."""
    if journal_url.startswith("sqlite"):
        spare = f"sqlite:///{tmp_path / 'spare.db'}"
    else:
        server: Server = request.getfixturevalue("postgres")
        spare = server.new_database(journal_url.rpartition("/")[2] + "_spare")
    return JournalWorld(tmp_path, journal_url, spare)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of the environment, with a home directory of this test's own."""
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOCKGATE_DEBUG", raising=False)
    return load_settings()


@pytest.fixture
def destination(tmp_path: Path) -> str:
    """Return a destination that has not been written yet."""
    return str(tmp_path / "lake")


@pytest.fixture
def run(settings: Settings) -> Run:
    """Return a function that runs `lockgate` with arguments."""
    root = build()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(root, list(arguments))

    return run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers on this broker poll at short intervals, not every two seconds, to acknowledge early."""
    from kombu.connection import Connection

    drain = Connection.drain_events
    monkeypatch.setattr(Connection, "drain_events", lambda self, **_: drain(self, timeout=0.05))  # type: ignore[no-untyped-call]


@pytest.fixture
def guest(tmp_path: Path, quick: None) -> Iterator[Guest]:
    """Return an application with blobs below its test's directory."""
    from tests.support.workers.third_party_app import application

    with application(load_settings(home=tmp_path / "home", celery_threshold_bytes=1_000)) as guest:
        yield guest
