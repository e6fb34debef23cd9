"""Journals of earlier versions, kept as files: this program folds them into the same rows, on both databases.

`version_1_journal/entries.jsonl` holds entries as that version stored them, at least one of every kind;
`rows.jsonl` holds the resulting rows, and `added.jsonl` those that later versions derive. Existing lines
never change; new kinds of entries add lines. `version_2_journal` has the entries that version 2 changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, column, insert, select, table, update
from zstandard import ZstdCompressor

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.journal import Journal, Leases, open_journal
from lockgate.storage_core.journal.checkpoint import replay as replaying
from lockgate.storage_core.journal.checkpoint.replay import replay
from lockgate.storage_core.journal.checkpoint.snapshot_file import End, Header, SnapshotReader
from lockgate.storage_core.journal.database import migrate
from lockgate.storage_core.journal.database.database import Database, parse_url, timeline
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.database.schema import ENTRY, HEAD, HOLDER, VERSION_TABLE
from lockgate.storage_core.journal.entries.family import Family, known_families, tag_of
from lockgate.storage_core.journal.entries.lease_entries import Lease
from lockgate.storage_core.journal.entries.state import Row
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.journal.read.snapshot_read import Entry, Epoch, Reading, read_epochs
from lockgate.storage_core.stamp import Stamp
from tests.support.journal.checkpoints import JournalWorld

REVISIONS: Final = {1: ("blobs_1", "files_1", "jobs_1", "journal_1"), 2: ("blobs_1", "jobs_2", "journal_2")}
versions = pytest.mark.parametrize("version", REVISIONS)


def lines(version: int, name: str) -> list[bytes]:
    return (Path(__file__).parent / f"version_{version}_journal" / name).read_bytes().splitlines()


def kept_entries(version: int) -> list[Entry]:
    return [decode_json(line, Entry) for line in lines(version, "entries.jsonl")]


def kept_rows(version: int) -> list[Row]:
    rows: list[Row] = []
    for line in (*lines(version, "rows.jsonl"), *lines(version, "added.jsonl")):
        table, row = decode_json(line, tuple[str, msgspec.Raw])
        kind = known_families().row(table)
        assert kind is not None, table
        rows.append(decode_json(row, kind))
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


def make_database(url: str, version: int) -> None:
    """Create a database of an earlier version, and fill it."""
    database = Database(parse_url(url))
    try:
        with database.write() as connection:
            migrate_to(connection, REVISIONS[version])
            put_head(
                connection, connection.execute(select(timeline(database.is_sqlite))).scalar_one(), version
            )
            put(connection, "entry", [json.loads(line) for line in lines(version, "entries.jsonl")])
            for name, row in (json.loads(line) for line in lines(version, "rows.jsonl")):
                put(connection, name, [row])
    finally:
        database.close()


def migrate_to(connection: Connection, revisions: Iterable[str]) -> None:
    config = Config()
    config.set_main_option("script_location", "lockgate.storage_core.journal.database:migrations")
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(migrate._folders()))
    config.attributes["connection"] = connection
    for revision in revisions:
        command.upgrade(config, revision)


def put_head(connection: Connection, timeline: int, version: int) -> None:
    """Insert the head of a journal, in safe mode if it is of version 1, and its epoch."""
    head: dict[str, object] = {"identity": "1" * 32, "epoch": 1, "sequence": len(kept_entries(version))}
    safe_mode = {"safe_since_s": 5.0, "safe_reason": "it was lost"} if version == 1 else {}
    others = {"timeline": timeline, "pruned_sequence": 0, "requests_since_s": 0.0}
    put(connection, "head", [{**head, **safe_mode, **others}])
    epoch = {"epoch": 1, "before": 0, "timeline": timeline, "reason": "new", "began_s": 1.0}
    put(connection, "epoch", [epoch])


def put(connection: Connection, name: str, rows: list[dict[str, object]]) -> None:
    """Insert rows with the columns that the version had."""
    into = table(name, column("journal"), *map(column, rows[0]))
    connection.execute(insert(into), [{"journal": "main", **row} for row in rows])


@versions
def test_a_database_of_an_earlier_version_is_upgraded_and_keeps_its_rows(
    journals: JournalWorld, version: int
) -> None:
    make_database(journals.url, version)
    with journals.open() as journal, journal.reading() as reading:
        assert by_key(rows_of(reading)) == by_key(kept_rows(version))
        found = reading.connection.execute(select(VERSION_TABLE)).scalars()
        assert sorted(found) == [family.revision for family in known_families()]
    assert journals.verify().findings == ()


def test_a_journal_of_version_1_stays_in_safe_mode_and_its_leases_are_renewed(journals: JournalWorld) -> None:
    make_database(journals.url, 1)
    with journals.open() as journal:
        with journal.reading() as reading:
            (reason,) = reading.status().safe_reasons
            holders = set(reading.connection.execute(select(HOLDER.c.holder)).scalars())
            live = [lease for lease in reading.where(Lease, {}) if lease.standing in {"held", "recovering"}]
        assert (reason.reason, reason.text, reason.since_s) == ("restored", "it was lost", 5.0)
        assert holders == {lease.holder for lease in live}
        for lease in live:
            assert Leases(journal).renew(lease.holder, {lease.resource: lease.stamp}) == {}


@versions
def test_the_stored_entries_fold_into_the_stored_rows(journals: JournalWorld, version: int) -> None:
    with open_journal(journals.url, clock=journals.clock) as journal:
        insert_entries(journal, kept_entries(version))
        with journal.reading() as reading:
            assert by_key(rows_of(reading)) == by_key(kept_rows(version))
    assert journals.verify().findings == ()


@versions
@pytest.mark.parametrize("batch", [1, 2, 7, 1000])
def test_the_stored_entries_are_verified_whatever_the_size_of_a_batch(
    tmp_path: Path, version: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "BATCH", batch)
    journals = JournalWorld(tmp_path, f"sqlite:///{tmp_path / 'journal.db'}", "")
    make_database(journals.url, version)

    found = journals.verify()

    assert (found.findings, found.entries) == ((), len(kept_entries(version)))


@versions
def test_a_checkpoint_of_an_earlier_version_is_restored_with_the_rows_of_this_one(
    journals: JournalWorld, version: int
) -> None:
    rows = [line for line in lines(version, "rows.jsonl") if not line.startswith(b'["request"')]
    known = {name: int(number) for name, _, number in (one.rpartition("_") for one in REVISIONS[version])}
    header = Header(
        journal="main",
        identity="1" * 32,
        stamp=Stamp(1, len(kept_entries(version))),
        epochs=(Epoch(epoch=1, before=0, timeline=0, reason="new", began_s=1.0),),
        taken_s=1.0,
        requests_since_s=0.0,
        families=known,
    )
    text = b"".join(line + b"\n" for line in (msgspec.json.encode(header), *rows))
    end = End(lines=len(rows), sha256=sha256(text).hexdigest())
    file = BytesIO(ZstdCompressor().compress(text + msgspec.json.encode(("end", end)) + b"\n"))
    assert by_key(list(SnapshotReader(file, "checkpoint 1.61").rows())) == by_key(kept_rows(version))


@pytest.mark.parametrize("family", [*known_families()], ids=lambda family: family.name)
def test_the_stored_files_have_every_kind_of_entry_and_row(family: Family) -> None:
    tags = {entry.op for entry in kept_entries(1)}
    kinds = {type(row) for row in kept_rows(1)}
    assert {tag_of(op) for op in family.ops} <= tags
    assert set(family.rows) <= kinds
