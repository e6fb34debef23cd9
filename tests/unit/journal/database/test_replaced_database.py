"""A database that is replaced under an open process is refused before anything is written or returned."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import delete, event, insert, select, update

from lockgate.storage_core.errors import StateLostError
from lockgate.storage_core.journal import Journal, Leases, Stamp, open_journal
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.journal.database.database import parse_url
from lockgate.storage_core.journal.database.schema import ENTRY, EPOCH, HEAD
from lockgate.storage_core.journal.database.sqlite_engine import sqlite_engine
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.journal.safe_mode import leave_safe_mode
from tests.support.journal.database import entries, take
from tests.support.postgres import Server

Replace = Callable[[], None]


CALLS: Final[Mapping[str, Callable[[Journal], object]]] = {
    "apply": lambda journal: journal.apply(take("b")),
    "renew": lambda journal: Leases(journal).renew("h", {"a": Stamp(1, 1)}),
    "leave-safe-mode": leave_safe_mode,
    "status": Journal.status,
    "client": lambda journal: Client(journal).read(Reading.status),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def empty(journal_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Replace:
    """Return a function that drops the database and makes an empty one of its name."""
    if journal_url.startswith("sqlite"):

        def remove() -> None:
            for file in tmp_path.glob("journal.db*"):
                file.unlink()

        return remove
    server: Server = request.getfixturevalue("postgres")
    name = journal_url.rpartition("/")[2]

    def drop() -> None:
        server.run_sql(f"DROP DATABASE {name} WITH (FORCE)")
        server.new_database(name)

    return drop


def stand_at(journal: Journal, **columns: Any) -> None:
    """Change the head's row, as if another database stood in the place of the journal's."""
    with journal.database.write() as connection:
        connection.execute(update(HEAD).where(HEAD.c.journal == journal.name).values(**columns))


def test_a_claim_is_not_accepted_a_second_time_by_a_database_that_was_made_again(
    journal: Journal, journal_url: str, empty: Replace
) -> None:
    Claims(journal, "s3://a").take("_SUCCESS", "mine")
    empty()
    with open_journal(journal_url) as other:
        Claims(other, "s3://a").take("_SUCCESS", "another's")
        Claims(other, "s3://a").take("COMMIT_STARTED", "another's")
        with pytest.raises(StateLostError, match=r"another journal named 'main'.*the database was replaced"):
            Claims(journal, "s3://b").take("_SUCCESS", "mine")
        assert Claims(other, "s3://b").names() == []


def test_an_empty_database_in_the_place_of_a_journal_is_refused(journal: Journal, empty: Replace) -> None:
    journal.apply(take("a"))
    empty()
    for call in CALLS.values():
        with pytest.raises(StateLostError, match="lockgate journal restore"):
            call(journal)


@each_call
def test_no_call_uses_another_journal_of_the_same_name(
    journal: Journal, journal_url: str, call: Callable[[Journal], object]
) -> None:
    """The rows are the same, so that only the identity differs."""
    journal.apply(take("a"))
    with open_journal(journal_url) as other:
        stand_at(other, identity="another", safe_since_s=1.0)
        with pytest.raises(StateLostError, match="another"):
            call(journal)
        other.identity = "another"
        lease = Leases(other).look("a")
        assert lease is not None
        assert entries(other) == 1
        assert other.status().safe_since_s == 1.0
        assert lease.lease.renewed_s == journal_time(other, 1)


@each_call
def test_no_call_uses_an_older_state_than_the_process_has_seen(
    journal: Journal, call: Callable[[Journal], object]
) -> None:
    for name in ("a", "b"):
        journal.apply(take(name))
    stand_at(journal, sequence=1, safe_since_s=1.0)
    with pytest.raises(StateLostError, match=r"is at 1\.1.*1\.2"):
        call(journal)
    with journal.database.snapshot() as connection:
        assert connection.execute(select(HEAD.c.sequence, HEAD.c.safe_since_s)).one() == (1, 1.0)


def test_a_server_with_a_new_timeline_continues_with_fewer_entries(journal: Journal) -> None:
    """A failover may lose entries: the next write begins an epoch, so no stamp is issued twice."""
    for name in ("a", "b"):
        journal.apply(take(name))
    with journal.database.write() as connection:
        connection.execute(delete(ENTRY).where(ENTRY.c.sequence > 1))
    stand_at(journal, sequence=1, timeline=99)
    assert journal.msync() == Stamp(1, 1)
    assert Leases(journal).renew("h", {"a": Stamp(1, 1)}) == {}
    stamp = journal.apply(take("c")).stamp
    assert (stamp.epoch > 1, stamp.sequence) == (True, 2)


@each_call
@pytest.mark.parametrize("by", [-1, 1, 0], ids=["smaller-number", "greater-number", "before-its-first-write"])
def test_no_call_goes_on_at_another_standby_that_was_promoted_from_the_same_primary(
    journal: Journal, call: Callable[[Journal], object], by: int
) -> None:
    journal.apply(take("a"))
    stand_at(journal, timeline=99)  # a standby is promoted, and another one beside it
    epoch = journal.apply(take("b")).stamp.epoch
    with journal.database.write() as connection:
        connection.execute(delete(ENTRY).where(ENTRY.c.epoch == epoch))
        connection.execute(delete(EPOCH).where(EPOCH.c.epoch == epoch))
        if by:
            row = {"before": 1, "timeline": 99, "reason": "promoted", "began_s": 1.0}
            connection.execute(insert(EPOCH).values(journal=journal.name, epoch=epoch + by, **row))
    other = {"epoch": epoch + by, "sequence": 7} if by else {"epoch": 1, "sequence": 1, "timeline": 98}
    stand_at(journal, **other)
    with pytest.raises(StateLostError, match=str(epoch)):
        call(journal)
    with journal.database.snapshot() as connection:
        assert connection.execute(select(HEAD.c.epoch)).scalar_one() == other["epoch"]


def test_two_standbys_promoted_from_one_primary_issue_no_stamp_twice(tmp_path: Path) -> None:
    primary, other = tmp_path / "primary.db", tmp_path / "other.db"
    with open_journal(f"sqlite:///{primary}") as journal:
        journal.apply(take("a"))
        stand_at(journal, timeline=99)
    shutil.copyfile(primary, other)
    stamps = set[Stamp]()
    for path in (primary, other):
        with open_journal(f"sqlite:///{path}") as journal:
            stamps.add(journal.apply(take("b")).stamp)
    assert len(stamps) == 2
    assert {stamp.sequence for stamp in stamps} == {2}


def test_a_token_of_another_process_stops_no_write(journal: Journal) -> None:
    """A token is text that anybody can send; only what the primary itself returned counts."""
    journal.seen_stamps.add(Stamp(7, 1))
    assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def copy_of(path: Path) -> Path:
    """Copy a database as a backup does."""
    copy = path.with_name("copy.db")
    source, target = sqlite3.connect(path), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    return copy


def log_files(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]


def test_a_file_that_was_put_back_is_refused_and_not_changed(files: Path) -> None:
    with open_journal(f"sqlite:///{files}") as journal:
        journal.apply(take("a"))
        copy = copy_of(files)
        journal.apply(take("b"))
        for path in (files, *log_files(files)):
            path.unlink()
        shutil.copyfile(copy, files)
        with pytest.raises(StateLostError, match=r"is at 1\.1.*has seen 1\.2"):
            journal.apply(take("c"))
    assert rows_of(files) == rows_of(copy)


def test_a_file_that_was_overwritten_without_its_log_is_refused_and_not_changed(files: Path) -> None:
    """The file keeps its inode. The process would go on in the removed log, and write that into the file."""
    with open_journal(f"sqlite:///{files}") as journal:
        journal.apply(take("a"))
        copy = copy_of(files)
        journal.apply(take("b"))
        for path in log_files(files):
            path.unlink()
        shutil.copyfile(copy, files)
        for call in CALLS.values():
            with pytest.raises(StateLostError, match=r"journal\.db-wal was removed or replaced"):
                call(journal)
    assert files.read_bytes() == copy.read_bytes()


def test_a_log_that_another_process_has_removed_before_the_first_read_is_no_loss(files: Path) -> None:
    """The last process to close a file removes its log, and one that has not read yet keeps no lock on it."""
    engine, others = sqlite_engine(parse_url(f"sqlite:///{files}"), 1.0), list[sqlite3.Connection]()

    @event.listens_for(engine, "connect")
    def begin_another(connection: object, record: object) -> None:
        others.append(sqlite3.connect(files))
        others[-1].execute("CREATE TABLE t (x)")

    with engine.connect() as connection:
        others.pop().close()
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
    engine.dispose()


def test_a_file_that_was_moved_away_and_back_is_used_again(files: Path) -> None:
    with open_journal(f"sqlite:///{files}") as journal:
        journal.apply(take("a"))
        moved = files.with_name("moved.db")
        files.rename(moved)
        with pytest.raises(StateLostError, match="removed while this process had it open"):
            journal.apply(take("b"))
        assert not files.exists()
        moved.rename(files)
        assert journal.apply(take("b")).stamp == Stamp(1, 2)


def rows_of(path: Path) -> list[Any]:
    with sqlite3.connect(path) as connection:
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("entry", "lease")]


def journal_time(journal: Journal, sequence: int) -> float:
    with journal.reading() as reading:
        return reading.entries(sequence - 1, 1)[0].at_s
