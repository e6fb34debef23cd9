"""A database with the known families is created, migrated from an older version, or refused unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, insert, inspect, select, text, update

from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.errors import InvalidInputError, JournalVersionError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.namespace.rows import ReportedVolume, VerifiedVolume
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.restore import open_survivor
from lockgate.storage_core.journal.database import migrate
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.schema import ENTRY, METADATA, VERSION_TABLE, table_of
from lockgate.storage_core.journal.entries.family import JOURNAL, Family, known_families
from lockgate.storage_core.journal.entries.lease_entries import FreeLease, Lease, TakeLease
from lockgate.storage_core.journal.entries.state import Request
from tests.support.commit.destination import Crash
from tests.support.journal.recorded_schema import run_alembic

pytestmark = pytest.mark.slow

REVISIONS = [family.revision for family in known_families()]


@pytest.fixture(autouse=True)
def alembic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "upgrade", run_alembic)


def take(resource: str) -> TakeLease:
    return TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120)


def record(job_id: str) -> RecordJob:
    return RecordJob(
        destination="s3://lake/sales", job_id=job_id, name="sales", short_id="abcdefghij", committer="magic",
        mode="append", phase="open", job_attempt="1", set_up_s=1.0,
    )  # fmt: skip


def in_transaction(url: str, work: Callable[[Connection], Any]) -> Any:
    """Change a database directly, without the journal."""
    database = Database(parse_url(url))
    try:
        with database.write() as connection:
            return work(connection)
    finally:
        database.close()


def make_without_families(url: str) -> None:
    """Make a database as a program with only the journal's own family would, and write to it."""
    with open_journal(url) as journal:
        journal.apply(take("a"), "request-a")
        written = journal.apply(take("b"), "request-b")
        journal.apply(FreeLease(resource="b", stamp=written.stamp), "request-free")

    def back(connection: Connection) -> None:
        for family in known_families():
            if family is not JOURNAL:
                for table in family.tables:
                    connection.execute(text(f"DROP TABLE {table}"))
                connection.execute(
                    delete(VERSION_TABLE).where(VERSION_TABLE.c.version_num == family.revision)
                )

    in_transaction(url, back)


def shape_of(url: str) -> dict[str, Any]:
    """Return the schema of a database's tables."""

    def look(connection: Connection) -> dict[str, Any]:
        seen = inspect(connection)
        return {
            table: (
                [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in seen.get_columns(table)],
                seen.get_pk_constraint(table),
                sorted(map(str, seen.get_indexes(table))),
                sorted(map(str, seen.get_unique_constraints(table))),
            )
            for table in sorted(seen.get_table_names())
        }

    shape: dict[str, Any] = in_transaction(url, look)
    return shape


def version_of(url: str) -> list[str]:
    return sorted(in_transaction(url, lambda c: c.execute(select(VERSION_TABLE)).scalars().all()))


def upgrade(url: str) -> None:
    database = Database(parse_url(url))
    try:
        with database.write() as connection:
            migrate.upgrade(connection, database)
    finally:
        database.close()


@pytest.mark.parametrize("family", [*known_families()], ids=lambda family: family.name)
def test_every_version_of_a_family_has_one_migration_step_in_sequence(family: Family) -> None:
    config = Config()
    config.set_main_option("script_location", "lockgate.storage_core.journal.database:migrations")
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(migrate._folders()))
    steps = list(ScriptDirectory.from_config(config).walk_revisions(head=f"{family.name}@head"))
    expected = [f"{family.name}_{number}" for number in range(1, family.version + 1)]
    assert [step.revision for step in reversed(steps)] == expected


def test_missing_families_are_created_and_existing_data_is_kept(journal_url: str) -> None:
    make_without_families(journal_url)
    assert version_of(journal_url) == [JOURNAL.revision]
    with open_journal(journal_url) as journal:
        with journal.reading() as reading:
            assert [entry.request_id for entry in reading.entries(0, 10)] == [
                "request-a", "request-b", "request-free",
            ]  # fmt: skip
            assert [lease.standing for lease in reading.where(Lease, {})] == ["held", "free"]
        assert journal.apply(take("a"), "request-a").is_repeat
        assert journal.apply(record("sales-g1")).stamp == Stamp(1, 4)
    assert version_of(journal_url) == REVISIONS


def test_an_upgrade_keeps_the_journals_identity(journal_url: str) -> None:
    with open_journal(journal_url) as journal:
        before = journal.identity
    make_without_families(journal_url)
    with open_journal(journal_url) as journal:
        assert journal.identity == before


def test_migrated_tables_match_the_row_definitions(
    journal_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if journal_url.startswith("sqlite"):
        derived_url = f"sqlite:///{tmp_path / 'derived.db'}"
    else:
        name = journal_url.rpartition("/")[2] + "_derived"
        derived_url = request.getfixturevalue("postgres").new_database(name)

    def derive(connection: Connection) -> None:
        METADATA.create_all(connection)
        rows = (Request, ReportedVolume, VerifiedVolume, *known_families().rows)
        for table in (VERSION_TABLE, *map(table_of, rows)):
            table.create(connection)

    in_transaction(derived_url, derive)
    with open_journal(journal_url):
        pass
    assert shape_of(journal_url) == shape_of(derived_url)


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_upgrade_that_fails_after_a_step_leaves_the_older_database(
    journal_url: str, revision: str
) -> None:
    def die(point: str) -> None:
        if point == f"journal-upgrade.{revision}":
            raise Crash(point)

    FAILPOINTS.observer = die
    try:
        with pytest.raises(Crash):
            upgrade(journal_url)
    finally:
        FAILPOINTS.observer = None
    assert shape_of(journal_url) == {}
    with open_journal(journal_url) as journal:
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.mark.fault
def test_a_killed_upgrade_leaves_the_older_database_and_the_next_one_completes_it(
    journal_url: str,
) -> None:
    make_without_families(journal_url)
    before = shape_of(journal_url)
    program = (
        "import sys; from lockgate.storage_core.failpoints import FAILPOINTS;"
        "from lockgate.storage_core.journal import open_journal;"
        "FAILPOINTS.arm({'journal-upgrade.jobs_1': 'kill'}); open_journal(sys.argv[1])"
    )
    died = subprocess.run([sys.executable, "-c", program, journal_url], check=False, timeout=120)
    assert died.returncode == -9
    assert shape_of(journal_url) == before
    assert version_of(journal_url) == [JOURNAL.revision]
    with open_journal(journal_url) as journal:
        assert journal.apply(record("sales-g1")).stamp == Stamp(1, 4)


OPENING = """
import sys
from lockgate.storage_core.journal import open_journal
sys.stdin.readline()
with open_journal(sys.argv[1]) as journal:
    print(journal.identity)
"""


@pytest.mark.parametrize("prepare", [lambda url: None, make_without_families], ids=["new", "old"])
def test_processes_that_open_a_database_at_the_same_instant_open_the_same_journal(
    journal_url: str, prepare: Callable[[str], None]
) -> None:
    prepare(journal_url)
    command = [sys.executable, "-c", OPENING, journal_url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    with open_journal(journal_url) as journal:
        assert answers == [journal.identity] * 3
    assert version_of(journal_url) == REVISIONS


@pytest.mark.parametrize("prepare", [lambda url: None, make_without_families], ids=["new", "old"])
def test_threads_that_open_a_database_at_the_same_instant_open_the_same_journal(
    journal_url: str, prepare: Callable[[str], None]
) -> None:
    prepare(journal_url)
    together, opened = threading.Barrier(4), list[Journal]()

    def open_it() -> None:
        together.wait()
        opened.append(open_journal(journal_url))

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    identities = [journal.identity for journal in opened]
    for journal in opened:
        journal.close()
    assert len(identities) == 4
    assert len(set(identities)) == 1


@pytest.mark.parametrize(
    ("revision", "named"),
    [
        ("blobs_3", "family of entries 'blobs' in version 3.* up to version 2;"),
        ("tables_1", r"family of entries 'tables' \(version 1\), which this program lacks"),
        ("5d1b2ea07c3a", "is of version 5d1b2ea07c3a, .*, this program's is blobs_2, "),
    ],
    ids=["newer", "unknown family", "another program's"],
)
def test_a_newer_or_unknown_family_is_refused_and_not_changed(
    journal_url: str, revision: str, named: str
) -> None:
    with open_journal(journal_url) as journal:
        journal.apply(take("a"))
    spoiled = VERSION_TABLE.c.version_num == "blobs_2"
    in_transaction(
        journal_url, lambda c: c.execute(update(VERSION_TABLE).where(spoiled).values(version_num=revision))
    )
    before, versions = shape_of(journal_url), version_of(journal_url)
    with pytest.raises(JournalVersionError, match="nothing was changed") as refused:
        open_journal(journal_url)
    assert re.search(named, str(refused.value))
    assert "use the release of Lockgate" in str(refused.value)
    with pytest.raises(JournalVersionError, match="nothing was changed"):
        open_survivor(journal_url, "main")
    assert shape_of(journal_url) == before
    assert version_of(journal_url) == versions
    count = in_transaction(journal_url, lambda c: len(c.execute(select(ENTRY)).all()))
    assert count == 1


@pytest.mark.parametrize(
    "revisions", [[], ["journal_1", "journal_2"], ["jobs_1"]], ids=["none", "two", "without the journal's"]
)
def test_a_database_without_a_unique_journal_version_is_refused(
    journal_url: str, revisions: list[str]
) -> None:
    def spoil(connection: Connection) -> None:
        VERSION_TABLE.create(connection)
        for revision in revisions:
            connection.execute(insert(VERSION_TABLE).values(version_num=revision))

    in_transaction(journal_url, spoil)
    with pytest.raises(JournalVersionError, match="a database or a schema of its own"):
        open_journal(journal_url)
    assert list(shape_of(journal_url)) == [VERSION_TABLE.name]


def test_a_database_of_another_program_is_refused_and_not_changed(journal_url: str) -> None:
    in_transaction(journal_url, lambda c: c.execute(text("CREATE TABLE job (id INTEGER)")))
    with pytest.raises(InvalidInputError, match="another program has tables there named job"):
        open_journal(journal_url)
    assert list(shape_of(journal_url)) == ["job"]


def test_tables_of_another_program_are_refused_if_only_a_family_is_missing(journal_url: str) -> None:
    make_without_families(journal_url)
    in_transaction(journal_url, lambda c: c.execute(text("CREATE TABLE blob (id INTEGER)")))
    before = shape_of(journal_url)
    with pytest.raises(InvalidInputError, match="another program has tables there named blob;"):
        open_journal(journal_url)
    assert shape_of(journal_url) == before
    assert version_of(journal_url) == [JOURNAL.revision]


def test_journals_in_one_database_are_independent_of_each_other(journal_url: str) -> None:
    with open_journal(journal_url) as one, open_journal(journal_url, "logs") as other:
        one.apply(take("a"), "request")
        assert other.apply(take("a"), "request").stamp == Stamp(1, 1)
        assert one.identity != other.identity


def test_opening_a_database_with_current_families_does_not_import_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    open_journal(url).close()
    program = (
        "import sys; from lockgate.storage_core.journal import open_journal;"
        "open_journal(sys.argv[1]).close(); sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, url], check=False, timeout=120).returncode == 0


def test_describing_the_families_imports_no_protocol_and_no_store() -> None:
    program = """
import sys
from lockgate.storage_core.journal.entries.family import known_families
known_families()
core = "lockgate.storage_core"
heavy = ("boto3", f"{core}.stores.s3.store", f"{core}.commit.job", f"{core}.blobs.server.server")
sys.exit(any(name in sys.modules for name in heavy))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0
