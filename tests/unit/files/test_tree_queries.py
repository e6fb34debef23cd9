"""A status and a page of a listing: one query each, which reads one entry for each name of the path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from sqlalchemy import event, text

from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.files.namespace.queries import PAGE, listing, names_in, status
from lockgate.storage_core.files.namespace.rows import ROOT, File, FileState, Inode, InodeKind
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.read.snapshot_read import Reading
from tests.support.journal.checkpoints import JournalWorld

T = TypeVar("T")

NAMES = 4 * PAGE
"""Names in `/`, and in `/a/b`."""


@pytest.fixture
def journal(journals: JournalWorld) -> Iterator[Journal]:
    rows: list[Row] = []
    for inode, (parent, name) in enumerate([(ROOT, "a"), (2, "b")], start=2):
        rows.append(Inode(parent=parent, name=name, inode=inode, kind=InodeKind.DIRECTORY, made_s=1.0))
    for number in range(NAMES):
        for parent, inode in ((ROOT, 10_000 + number), (3, 20_000 + number)):
            name = f"f-{number:05d}"
            rows += [
                Inode(parent=parent, name=name, inode=inode, kind=InodeKind.FILE, made_s=1.0),
                File(inode=inode, state=FileState.OPEN, blocks=1, length_bytes=number, changed_s=2.0),
            ]
    with journals.open() as journal:
        with journal.database.write() as connection:
            SqlRows(connection, journal.name).write({(type(row), row.key): row for row in rows})
        yield journal


def reads(journal: Journal, query: Callable[[Reading], T]) -> tuple[T, int | str]:
    """Return what a query finds, and how many names it has read; on SQLite its plan."""
    with journal.reading() as reading:
        connection = reading.connection
        if reading.database.is_sqlite:
            statements: list[tuple[str, Any]] = []

            def note(_connection: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> None:
                statements.append((statement, given))

            event.listen(connection, "before_cursor_execute", note)
            found = query(reading)
            event.remove(connection, "before_cursor_execute", note)
            ((statement, given),) = statements
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given)
            return found, "\n".join(str(row[-1]) for row in plan)
        found = query(reading)
        counted = text(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'inode'"
        )
        return found, int(connection.execute(counted).scalar_one())


def test_a_status_reads_one_entry_for_each_name_of_the_path(journal: Journal) -> None:
    found, cost = reads(journal, lambda reading: status(reading, f"/a/b/f-{NAMES - 1:05d}"))

    assert (found.is_directory, found.is_open, found.length_bytes) == (False, True, NAMES - 1)
    if isinstance(cost, int):
        assert cost == 3
    else:
        assert "inode_1 (journal=? AND parent=? AND name=?)" in cost
        assert "SCAN inode" not in cost


@pytest.mark.parametrize("after", [None, f"f-{NAMES // 2:05d}"])
def test_a_page_of_a_listing_reads_the_page_only(journal: Journal, after: str | None) -> None:
    found, cost = reads(journal, lambda reading: listing(reading, "/a/b", after))

    first = 0 if after is None else NAMES // 2 + 1
    assert [one.name for one in found] == [f"f-{number:05d}" for number in range(first, first + PAGE)]
    assert [one.length_bytes for one in found] == list(range(first, first + PAGE))
    if isinstance(cost, int):
        assert cost == 2 + PAGE
    else:
        assert "inode_1 (journal=? AND parent=? AND name>?)" in cost
        assert "B-TREE" not in cost


def test_a_name_is_looked_up_by_its_whole_key(journal: Journal) -> None:
    found, cost = reads(journal, lambda reading: reading.get(Inode, 3, f"f-{NAMES // 2:05d}"))

    assert found is not None
    if isinstance(cost, int):
        assert cost == 1
    else:
        assert "inode_1 (journal=? AND parent=? AND name=?)" in cost


def test_a_page_of_names_to_remove_reads_the_page_only(journal: Journal) -> None:
    found, cost = reads(journal, lambda reading: names_in(reading, 3, f"f-{NAMES // 2:05d}"))

    assert len(found) == PAGE
    if isinstance(cost, int):
        assert cost == PAGE
    else:
        assert "(journal=? AND parent=? AND name>?)" in cost
        assert "B-TREE" not in cost


def test_listings_of_the_root_and_of_what_is_none(journal: Journal) -> None:
    with journal.reading() as reading:
        first = listing(reading, "/")
        assert [one.name for one in first[:2]] == ["a", "f-00000"]
        assert first[0].is_directory
        assert status(reading, "/a/b").is_directory
        assert listing(reading, "/a/b", f"f-{NAMES:05d}") == []
        with pytest.raises(ObjectNotFoundError, match="the directory /a/c does not exist"):
            listing(reading, "/a/c")
        with pytest.raises(ObjectNotFoundError, match="the directory /c does not exist"):
            status(reading, "/c/b/f-00000")
        with pytest.raises(ConflictError, match="/f-00000 is a file"):
            listing(reading, "/f-00000")
        with pytest.raises(ConflictError, match="/f-00000 is a file"):
            status(reading, "/f-00000/x")


def test_names_that_json_escapes_are_found(journal: Journal) -> None:
    odd = 'a"\\é%_ [0]'
    rows = [
        Inode(parent=ROOT, name=odd, inode=4, kind=InodeKind.DIRECTORY, made_s=1.0),
        Inode(parent=4, name=odd, inode=5, kind=InodeKind.DIRECTORY, made_s=1.0),
    ]
    with journal.database.write() as connection:
        SqlRows(connection, journal.name).write({(Inode, row.key): row for row in rows})
    with journal.reading() as reading:
        assert status(reading, f"/{odd}/{odd}").inode == 5
        assert [one.inode for one in listing(reading, f"/{odd}")] == [5]
