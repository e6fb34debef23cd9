"""Errors of an unusable SQLite file state what was applied and name the remedy."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    MalformedJournalError,
)
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from tests.support.journal.database import QUICK, entries, take


@contextmanager
def as_another_user() -> Iterator[None]:
    """Run as a user without root's rights, because file permissions do not apply to root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """Return a directory that every user can access; pytest's own belong to root alone."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_directory_is_refused_and_not_changed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is a directory: name a file in it"):
        open_journal(f"sqlite:///{tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_sqlite_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database, and longer than a header of SQLite is\n" * 100)
    before = path.read_bytes()
    with pytest.raises(MalformedJournalError, match="lockgate journal restore"):
        open_journal(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_corrupt_file_is_refused_with_instructions_to_restore_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}") as journal:
        journal.apply(take("a"))
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xff" * (len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(MalformedJournalError, match="lockgate journal restore"):
        open_journal(f"sqlite:///{path}")
    assert path.read_bytes() == damaged


@contextmanager
def locked(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_locked_file_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as journal:
        with locked(path), pytest.raises(JournalUnavailableError, match="another process has held its lock"):
            journal.apply(take("a"))
        assert entries(journal) == 0
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


def test_a_locked_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with open_journal(f"sqlite:///{path}", busy_s=QUICK) as journal:
        journal.apply(take("a"))
        with locked(path):
            assert entries(journal) == 1


def test_a_read_only_file_is_reported_and_not_changed(open_dir: Path) -> None:
    path = open_dir / "journal.db"
    open_journal(f"sqlite:///{path}").close()
    path.chmod(0o444)
    before = path.read_bytes()
    with as_another_user(), pytest.raises(JournalUnavailableError, match="writable for this user"):
        open_journal(f"sqlite:///{path}").apply(take("a"))
    assert path.read_bytes() == before


def test_a_disk_that_becomes_read_only_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    """No disk is mounted: SQLite is configured to refuse writes, and fails as it does on such a disk."""
    with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        journal.apply(take("a"))
        _on_checkout(journal, "PRAGMA query_only=ON")
        with pytest.raises(JournalUnavailableError, match="its disk writable"):
            journal.apply(take("b"))
        assert entries(journal) == 1


def test_a_full_disk_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    with open_journal(f"sqlite:///{tmp_path}/journal.db") as journal:
        journal.apply(take("a"))
        pages = _ask(journal, "PRAGMA page_count")
        _on_checkout(journal, f"PRAGMA max_page_count={pages}")
        with pytest.raises(JournalUnavailableError, match="free space on its disk"):
            journal.apply(take("b", "b" * 100_000))
        assert entries(journal) == 1
        _on_checkout(journal, "PRAGMA max_page_count=1000000")
        assert journal.apply(take("c")).stamp == Stamp(1, 2)


def _on_checkout(journal: Journal, pragma: str) -> None:
    @event.listens_for(journal.database._engine, "checkout")
    def _checkout(connection: sqlite3.Connection, record: Any, proxy: Any) -> None:
        connection.execute(pragma).close()


def _ask(journal: Journal, question: str) -> Any:
    with journal.database.snapshot() as connection:
        return connection.execute(text(question)).scalar_one()
