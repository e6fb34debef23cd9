"""Rows in and out of either database, many at a time: exactly as they were, and by their index."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, Select

from storage_core.journal import Journal, Mutation, bulk, open_journal
from storage_core.journal.ops.jobs import RecordTask
from storage_core.journal.reading import Entry
from storage_core.journal.rows import ROWS, Claim, Lease, Row, Standing, TaskAttempt
from storage_core.journal.schema import ATTEMPT, ENTRY, METADATA
from storage_core.journal.tables import SqlRows
from tests.postgres_world import Server

TEXTS = ("", "plain", "quote ' \" and \\ and \n\t{}[],", "ü 漢字 🦊", "NULL", "$[0]", "%s", ":given")
FIGURES = (0.1 + 0.2, 1e-308, 5e-324, 1.7976931348623157e308, 1_800_000_000.123_456_7, -0.5, 2.0**53 + 2)


def lease(resource: str, **changes: object) -> Lease:
    before = Lease(
        resource=resource, holder="h", epoch=1, sequence=1, standing=Standing.HELD,
        renewed_s=0.0, soft_s=1.0, hard_s=2.0,
    )  # fmt: skip
    return msgspec.structs.replace(before, **changes)


def put(journal: Journal, rows: list[Row]) -> None:
    with journal.database.write() as connection:
        SqlRows(connection, journal.name).write({(type(row), row.key): row for row in rows})


@pytest.mark.parametrize("kind", [*ROWS, Entry])
def test_the_fields_of_a_row_are_its_tables_columns_in_their_order(kind: type[msgspec.Struct]) -> None:
    table = ENTRY if kind is Entry else METADATA.tables[kind.TABLE]  # type: ignore[attr-defined]
    names = [field.name for field in msgspec.structs.fields(kind)]
    assert [column.name for column in table.columns] == ["journal", *names]


def test_texts_figures_and_nulls_come_back_exactly(journal: Journal) -> None:
    rows: list[Row] = [lease(f"{n}{text}", detail=text) for n, text in enumerate(TEXTS)]
    rows += [lease(f"f{n}", renewed_s=one, parked_until_s=one) for n, one in enumerate(FIGURES)]
    rows += [lease("large", sequence=2**62), lease("none", parked_until_s=None)]
    put(journal, rows)
    with journal.reading() as reading:
        found = reading.find(Lease, [row.key for row in rows])
    assert sorted(found, key=lambda row: row.key) == sorted(rows, key=lambda row: row.key)


def test_keys_of_several_columns_are_told_apart(journal: Journal) -> None:
    rows: list[Row] = [
        Claim(store=store, name=name, body=f"{store}/{name}", claimed_s=1.0)
        for store in TEXTS
        for name in TEXTS
    ]
    put(journal, rows)
    with journal.reading() as reading:
        (found,) = reading.find(Claim, [(TEXTS[2], TEXTS[3]), ("absent", TEXTS[3])])
    assert found.body == f"{TEXTS[2]}/{TEXTS[3]}"


def test_a_row_takes_the_place_of_the_one_with_its_key_and_can_be_removed(journal: Journal) -> None:
    put(journal, [lease("a", detail="old"), lease("b", detail="old")])
    put(journal, [lease("a", detail="new"), lease("c")])
    with journal.database.write() as connection:
        SqlRows(connection, journal.name).write({(Lease, ("b",)): None, (Lease, ("absent",)): None})
    with journal.reading() as reading:
        assert [(row.resource, row.detail) for row in reading.where(Lease, {})] == [("a", "new"), ("c", "")]


def test_more_than_one_statement_could_name_are_found_and_removed_at_once(journal: Journal) -> None:
    rows: list[Row] = [lease(f"{number:05d}") for number in range(5000)]
    put(journal, rows)
    keys = [row.key for row in rows]
    with journal.reading() as reading:
        assert len(reading.find(Lease, keys)) == len(rows)
    with journal.database.write() as connection:
        SqlRows(connection, journal.name).write(dict.fromkeys(((Lease, key) for key in keys), None))
    with journal.reading() as reading:
        assert reading.where(Lease, {}) == []


def test_journals_of_one_database_do_not_see_each_others_rows(journal_url: str) -> None:
    with open_journal(journal_url) as main, open_journal(journal_url, "other") as other:
        put(main, [lease("a", detail="main")])
        put(other, [lease("a", detail="other")])
        with main.reading() as reading:
            assert [row.detail for row in reading.find(Lease, [("a",)])] == ["main"]


@pytest.mark.requires("postgres")
def test_a_table_that_grew_is_asked_by_its_index_by_those_who_knew_it_small(postgres: Server) -> None:
    """A plan that was kept from when the table was small would read all of it, at every write, for ever."""
    with open_journal(postgres.new_database("grown")) as journal:
        with journal.database.write() as connection:
            for _ in range(20):
                bulk.find(connection, ATTEMPT, "main", [("d", "j", "t", "a")], lock=False)
            assert connection.exec_driver_sql("SHOW plan_cache_mode").scalar_one() == "force_custom_plan"
        journal.write([Mutation(op=task(number)) for number in range(2000)])
        with journal.reading() as reading:
            for column, by in (
                (ENTRY.c.sequence, [ENTRY.c.request_id]),
                (ATTEMPT.c.files, [ATTEMPT.c[name] for name in TaskAttempt.KEY]),
            ):
                plan = explained(reading.connection, bulk.matching([column], by, False))
                (condition,) = [line for line in plan if "Index Cond" in line]
                assert all(f"{key.name} = " in condition for key in by), plan


def task(number: int) -> RecordTask:
    return RecordTask(
        destination="d", job_id="j", task_id=f"{number}", attempt_id="a", job_attempt="r",
        files=1, rows=None, size_bytes=1,
    )  # fmt: skip


def explained(connection: Connection, statement: Select[Any]) -> list[str]:
    """The plan that the server makes now, a line a step."""
    asked = {"of_journal": "main", "given": '[["d", "j", "t", "a"]]'}
    text = str(statement.compile(connection.engine))
    return [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {text}", asked)]
