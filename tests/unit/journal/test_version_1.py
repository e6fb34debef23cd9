"""A journal of version 1, kept as files: this program must fold it into the same rows, on both databases.

`version_1_journal/entries.jsonl` holds its entries as version 1 stored them, at least one of every kind;
`rows.jsonl` holds the resulting rows. Existing lines never change; new kinds of entries add lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, column, insert, select, table, update

from lockgate.storage_core.journal import Journal, Leases, open_journal
from lockgate.storage_core.journal.checkpoint.replay import replay
from lockgate.storage_core.journal.database import migrate
from lockgate.storage_core.journal.database.database import Database, parse_url, timeline
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD, HOLDER, VERSION_TABLE
from lockgate.storage_core.journal.entries.family import Family, known_families, tag_of
from lockgate.storage_core.journal.entries.rows import Lease, Row
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


def make_database(url: str) -> None:
    """Create a database with the first migration of each family only, and fill it."""
    database = Database(parse_url(url))
    try:
        with database.write() as connection:
            migrate_to(connection, [f"{family.name}_1" for family in known_families()])
            put_head(connection, connection.execute(select(timeline(database.is_sqlite))).scalar_one())
            put(connection, "entry", [msgspec.json.decode(line) for line in lines("entries.jsonl")])
            for name, row in (msgspec.json.decode(line) for line in lines("rows.jsonl")):
                put(connection, name, [row])
    finally:
        database.close()


def migrate_to(connection: Connection, revisions: list[str]) -> None:
    config = Config()
    config.set_main_option("script_location", "lockgate.storage_core.journal.database:migrations")
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(migrate._folders()))
    config.attributes["connection"] = connection
    for revision in revisions:
        command.upgrade(config, revision)


def put_head(connection: Connection, timeline: int) -> None:
    """Insert the head of a journal in safe mode, and its epoch."""
    head: dict[str, object] = {"identity": "1" * 32, "epoch": 1, "sequence": len(kept_entries())}
    safe_mode = {"safe_since_s": 5.0, "safe_reason": "it was lost"}
    others = {"timeline": timeline, "pruned_sequence": 0, "requests_since_s": 0.0}
    put(connection, "head", [{**head, **safe_mode, **others}])
    epoch = {"epoch": 1, "before": 0, "timeline": timeline, "reason": "new", "began_s": 1.0}
    put(connection, "epoch", [epoch])


def put(connection: Connection, name: str, rows: list[dict[str, object]]) -> None:
    """Insert rows with the columns that version 1 had."""
    into = table(name, column("journal"), *map(column, rows[0]))
    connection.execute(insert(into), [{"journal": "main", **row} for row in rows])


def test_a_database_of_version_1_is_upgraded_and_keeps_its_rows(journals: JournalWorld) -> None:
    make_database(journals.url)
    with journals.open() as journal:
        with journal.reading() as reading:
            assert by_key(rows_of(reading)) == by_key(kept_rows())
            versions = reading.connection.execute(select(VERSION_TABLE)).scalars()
            assert sorted(versions) == [family.revision for family in known_families()]
            (reason,) = reading.status().safe_reasons
            holders = set(reading.connection.execute(select(HOLDER.c.holder)).scalars())
            live = [lease for lease in reading.where(Lease, {}) if lease.standing in {"held", "recovering"}]
        assert (reason.reason, reason.text, reason.since_s) == ("restored", "it was lost", 5.0)
        assert holders == {lease.holder for lease in live}
        for lease in live:
            assert Leases(journal).renew(lease.holder, {lease.resource: lease.stamp}) == {}
    assert journals.verify().findings == ()


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
