"""Many rows at a time are written to and read from either database unchanged and by index."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import Connection

from lockgate.storage_core.blobs.registry.blob_rows import Reference
from lockgate.storage_core.commit.registry.entries import RecordTask
from lockgate.storage_core.commit.registry.rows import Job, TaskAttempt
from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal import Journal, Mutation, open_journal
from lockgate.storage_core.journal.database import bulk
from lockgate.storage_core.journal.database.pipeline import execute_pipelined
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.database.schema import ENTRY, REQUEST, table_of
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import Lease, Standing
from lockgate.storage_core.journal.entries.state import Key, Row
from lockgate.storage_core.journal.read.snapshot_read import Entry
from lockgate.storage_core.journal.write.head import lock_statement
from tests.support.postgres import Server

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


def test_the_fields_of_an_entry_are_the_columns_of_its_table_in_order() -> None:
    assert [column.name for column in ENTRY.columns] == ["journal", *Entry.__struct_fields__]


def test_texts_numbers_and_nulls_are_read_back_exactly(journal: Journal) -> None:
    rows: list[Row] = [lease(f"{n}{text}", detail=text) for n, text in enumerate(TEXTS)]
    rows += [lease(f"f{n}", renewed_s=one, suspended_until_s=one) for n, one in enumerate(FIGURES)]
    rows += [lease("large", sequence=2**62), lease("none", suspended_until_s=None)]
    put(journal, rows)
    with journal.reading() as reading:
        found = reading.find(Lease, [row.key for row in rows])
    assert sorted(found, key=lambda row: row.key) == sorted(rows, key=lambda row: row.key)


def test_more_rows_than_one_statement_can_name_are_found_and_removed_in_one_call(journal: Journal) -> None:
    rows: list[Row] = [lease(f"{number:05d}") for number in range(5000)]
    put(journal, rows)
    keys = [row.key for row in rows]
    with journal.reading() as reading:
        assert len(reading.find(Lease, keys)) == len(rows)
    with journal.database.write() as connection:
        SqlRows(connection, journal.name).write(dict.fromkeys(((Lease, key) for key in keys), None))
    with journal.reading() as reading:
        assert reading.where(Lease, {}) == []


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("rows", [0, 40])
def test_a_cached_plan_reads_by_index_even_if_made_for_small_tables(postgres: Server, rows: int) -> None:
    """A plan made for a small table scans all of it, and would still do so once the table has grown."""
    with open_journal(postgres.new_database(f"small_{rows}")) as journal:
        journal.write([Mutation(op=task(number)) for number in range(rows)])
        with journal.database.write() as connection:
            connection.exec_driver_sql("ANALYZE")  # the planner now knows that they are small
        journal.apply(task(rows))
        with journal.database.snapshot() as connection:
            plans = kept_plans(connection)
    for table, by in (
        (ENTRY, ["request_id"]),
        (REQUEST, ["request_id"]),
        (table_of(TaskAttempt), TaskAttempt.KEY),
    ):
        (at,) = [
            number
            for number, line in enumerate(plans)
            if "Index Scan using" in line and line.endswith(f" on {table.name}")
        ]
        assert all(f"{name} = " in plans[at + 1] for name in ("journal", *by)), plans
        assert not any(f"Seq Scan on {table.name}" in line for line in plans)
    assert not any(line.lstrip().startswith("Filter:") for line in plans), plans


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("kind", [Job, Reference])
def test_no_plan_is_cached_that_could_read_all_rows_by_an_index_other_than_the_primary_key(
    postgres: Server, kind: type[Row]
) -> None:
    """For a small table, the planner rates any index that begins with the journal as high as the key's."""
    with open_journal(postgres.new_database(f"indexes_of_{kind.TABLE}")) as journal:
        for _ in range(2):
            with journal.database.write() as connection:
                rows = SqlRows(connection, journal.name, lock=True)
                lock = lock_statement(journal.database, journal.name, keeps_plans=True)
                execute_pipelined(connection, [lock, rows.select_by_key(kind, [("k",) * len(kind.KEY)])])
                execute_pipelined(connection, [rows.select_by_columns(kind, kind.KEY[:1], [("k",)])])
        with journal.database.snapshot() as connection:
            assert not any(f" on {kind.TABLE}" in line for line in kept_plans(connection))


@pytest.mark.parametrize("kind", known_families().rows)
def test_an_index_that_begins_within_the_key_has_the_whole_key(kind: type[Row]) -> None:
    within = [set(index) for index in kind.INDEXES if index[0] in kind.KEY[1:]]
    if kind is Job:  # the id of a job is random, so few destinations have a job of the same id
        within.remove({"job_id"})
    assert all(index >= set(kind.KEY) for index in within)


@pytest.mark.requires("postgres")
@pytest.mark.parametrize("is_analysed", [False, True])
def test_references_of_one_owner_to_many_blobs_are_looked_up_by_their_whole_key(
    postgres: Server, is_analysed: bool
) -> None:
    """A smaller index by owner only would seem as good as the key's, until the planner knows the rows."""
    many = [
        Reference(job_id="up", blob_key=f"{number:097x}", owner="job", taken_s=0.0) for number in range(2_000)
    ]
    others = [msgspec.structs.replace(one, job_id="log", owner=one.blob_key) for one in many * is_analysed]
    at = [("up", f"{number:097x}", "job") for number in range(1_950, 2_050)]
    fetched = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = %s"
    with open_journal(postgres.new_database(f"owners_{is_analysed}")) as journal:
        put(journal, [*many, *others])
        if is_analysed:
            with journal.database.write() as connection:
                connection.exec_driver_sql("ANALYZE")
        with journal.database.write() as connection:
            rows = SqlRows(connection, journal.name)
            assert len(rows.find(Reference, at)) == 50
            read = connection.exec_driver_sql(fetched, (Reference.TABLE,)).scalar_one()
        assert read == 50


@pytest.mark.parametrize("size", [bulk.MANY - 1, bulk.MANY])
def test_rows_are_stored_identically_by_copy_and_by_insert(journal: Journal, size: int) -> None:
    old: list[Row] = [lease(f"old{n}") for n in range(size)]
    put(journal, old)
    new = [
        lease(f"new{n}", detail=TEXTS[n % len(TEXTS)], renewed_s=FIGURES[n % len(FIGURES)])
        for n in range(size)
    ]
    changed = [msgspec.structs.replace(row, detail="changed", suspended_until_s=1.0) for row in old]
    rows: list[Row] = [*new, *changed]
    with journal.database.write() as connection:
        changes = {(type(row), row.key): row for row in rows}
        SqlRows(connection, journal.name).write(changes, absent={(Lease, row.key) for row in new})
    with journal.reading() as reading:
        found = reading.where(Lease, {})
    assert sorted(found, key=lambda row: row.key) == sorted(rows, key=lambda row: row.key)


@pytest.mark.parametrize("size", [1, 2 * bulk.MANY])
def test_a_row_declared_new_that_already_exists_is_refused_and_nothing_is_stored(
    journal: Journal, size: int
) -> None:
    put(journal, [lease("0", detail="old")])
    rows = [lease(f"{n}", detail="new") for n in range(size)]
    changes: dict[Key, Row | None] = {(Lease, row.key): row for row in rows}
    with pytest.raises(MalformedJournalError, match="contradicts itself"), journal.database.write() as held:
        SqlRows(held, journal.name).write(changes, absent=set(changes))
    with journal.reading() as reading:
        assert [row.detail for row in reading.where(Lease, {})] == ["old"]


def task(number: int) -> RecordTask:
    return RecordTask(
        destination="d", job_id="j", task_id=f"{number}", attempt_id="a", job_attempt="r",
        files=1, rows=None, size_bytes=1,
    )  # fmt: skip


def kept_plans(connection: Connection) -> list[str]:
    """Return the plans of this session's prepared statements, one line per step."""
    connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")  # shows the cached plans
    query = "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE generic_plans > 0"
    lines: list[str] = []
    for name, parameters in connection.exec_driver_sql(query).all():
        given = ", ".join(["NULL"] * parameters)
        lines += connection.exec_driver_sql(f"EXPLAIN (COSTS OFF) EXECUTE {name} ({given})").scalars()
    return lines
