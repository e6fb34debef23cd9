"""A journal of version 1, kept as files: this program must fold it into the same rows, on both databases.

`version_1_journal/entries.jsonl` holds its entries as version 1 stored them, at least one of every kind;
`rows.jsonl` holds the resulting rows. Existing lines never change; new kinds of entries add lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pytest
from sqlalchemy import insert, update

from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.journal.checkpoint.replay import replay
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD
from lockgate.storage_core.journal.entries.family import Family, known_families, tag_of
from lockgate.storage_core.journal.entries.rows import Row
from lockgate.storage_core.journal.maintenance import maintenance
from lockgate.storage_core.journal.read.epochs import read_epochs
from lockgate.storage_core.journal.read.snapshot_read import Entry, Reading
from tests.support.journal.checkpoints import JournalWorld

KEPT: Final = Path(__file__).parent / "version_1_journal"


def lines(name: str) -> list[bytes]:
    return (KEPT / name).read_bytes().splitlines()


def kept_entries() -> list[Entry]:
    return [msgspec.json.decode(line, type=Entry) for line in lines("entries.jsonl")]


def kept_rows() -> list[Row]:
    rows: list[Row] = []
    for line in lines("rows.jsonl"):
        table, row = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        kind = known_families().row(table)
        assert kind is not None, table
        rows.append(msgspec.json.decode(row, type=kind))
    return rows


def rows_of(reading: Reading) -> list[Row]:
    return [row for kind in known_families().rows for row in reading.where(kind, {})]


def by_key(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.TABLE, row.key))


def insert_entries(journal: Journal, entries: list[Entry]) -> None:
    """Insert entries unchanged into an empty journal, and fold them."""
    with maintenance(journal, "restore") as (connection, _):
        stored = [{"journal": journal.name, **msgspec.structs.asdict(entry)} for entry in entries]
        connection.execute(insert(ENTRY), stored)
        head = update(HEAD).where(HEAD.c.journal == journal.name)
        connection.execute(head.values(sequence=entries[-1].sequence))
        epochs = read_epochs(Reading(connection, journal.database, journal.name))
        replay(SqlRows(connection, journal.name), entries, epochs)


def test_the_stored_entries_fold_into_the_stored_rows(journals: JournalWorld) -> None:
    with open_journal(journals.url, clock=journals.clock) as journal:
        insert_entries(journal, kept_entries())
        with journal.reading() as reading:
            assert by_key(rows_of(reading)) == by_key(kept_rows())
    assert journals.verify().findings == ()


@pytest.mark.parametrize("family", [*known_families()], ids=lambda family: family.name)
def test_the_stored_files_have_every_kind_of_entry_and_row_of_a_first_version(family: Family) -> None:
    tags = {entry.op for entry in kept_entries()}
    kinds = {type(row) for row in kept_rows()}
    assert {tag_of(op) for op in family.ops} <= tags
    assert set(family.rows) <= kinds
