"""A database of this version: made, migrated from an older one, or refused as it is."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, inspect, select, text, update

from lockgate.storage_core.errors import InvalidInputError, JournalVersionError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from lockgate.storage_core.journal.database import migrate
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.schema import ENTRY, METADATA, VERSION_TABLE, VERSIONS
from lockgate.storage_core.journal.entries.jobs import RecordJob
from lockgate.storage_core.journal.entries.leases import FreeLease, TakeLease
from lockgate.storage_core.journal.entries.rows import Lease
from tests.support.commit.destination import Crash

LATER = ("destination", "job", "attempt", "claim", "blob", "reference", "upload_set", "blob_job")
"""The tables that the first version did not have."""


def take(resource: str) -> TakeLease:
    return TakeLease(resource=resource, holder="h", purpose="write", soft_s=30, hard_s=120)


def record(job_id: str) -> RecordJob:
    return RecordJob(
        destination="s3://lake/sales", job_id=job_id, name="sales", short_id="abcdefghij", committer="magic",
        mode="append", phase="open", job_attempt="1", set_up_s=1.0,
    )  # fmt: skip


def in_transaction(url: str, work: Callable[[Connection], Any]) -> Any:
    """Do something to a database behind the journal's back."""
    database = Database(parse_url(url))
    try:
        with database.write() as connection:
            return work(connection)
    finally:
        database.close()


def make_first_version(url: str) -> None:
    """Make a database as the first version made it, and write to it as that one did."""
    with open_journal(url) as journal:
        journal.apply(take("a"), "request-a")
        written = journal.apply(take("b"), "request-b")
        journal.apply(FreeLease(resource="b", stamp=written.stamp), "request-free")

    def back(connection: Connection) -> None:
        for table in LATER:
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(update(VERSION_TABLE).values(version_num=VERSIONS[0]))

    in_transaction(url, back)


def shape_of(url: str) -> dict[str, Any]:
    """Tell all that a database says of its tables."""

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
    found: list[str] = in_transaction(url, lambda c: list(c.execute(select(VERSION_TABLE)).scalars()))
    return found


def test_every_version_has_a_step_and_the_steps_are_in_line() -> None:
    config = Config()
    config.set_main_option("script_location", "lockgate.storage_core.journal:migrations")
    config.set_main_option("path_separator", "os")
    steps = list(ScriptDirectory.from_config(config).walk_revisions())
    assert tuple(step.revision for step in reversed(steps)) == VERSIONS


def test_a_database_of_the_first_version_is_upgraded_and_keeps_its_data(journal_url: str) -> None:
    make_first_version(journal_url)
    with open_journal(journal_url) as journal:
        with journal.reading() as reading:
            assert [entry.request_id for entry in reading.entries(0, 10)] == [
                "request-a", "request-b", "request-free",
            ]  # fmt: skip
            assert [lease.standing for lease in reading.where(Lease, {})] == ["held", "free"]
        assert journal.apply(take("a"), "request-a").is_repeat
        assert journal.apply(record("sales-g1")).stamp == Stamp(1, 4)
    assert version_of(journal_url) == [VERSIONS[-1]]


def test_an_upgrade_keeps_the_journals_identity(journal_url: str) -> None:
    with open_journal(journal_url) as journal:
        before = journal.identity
    make_first_version(journal_url)
    with open_journal(journal_url) as journal:
        assert journal.identity == before


def test_an_upgraded_database_has_the_tables_that_the_program_works_with(journal_url: str) -> None:
    make_first_version(journal_url)
    with open_journal(journal_url):
        pass
    compare = {"compare_type": True, "compare_server_default": True}
    assert (
        in_transaction(
            journal_url, lambda c: compare_metadata(MigrationContext.configure(c, opts=compare), METADATA)
        )
        == []
    )


def test_a_database_upgraded_from_nothing_is_the_same_as_a_new_one(
    journal_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    in_transaction(journal_url, migrate._upgrade)
    with open_journal(journal_url):
        pass
    upgraded = shape_of(journal_url)
    if journal_url.startswith("sqlite"):
        fresh_url = f"sqlite:///{tmp_path / 'fresh.db'}"
    else:
        fresh_url = request.getfixturevalue("postgres").new_database(
            journal_url.rpartition("/")[2] + "_fresh"
        )
    with open_journal(fresh_url):
        pass
    assert upgraded == shape_of(fresh_url)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_that_dies_after_a_step_leaves_the_older_database(journal_url: str, version: str) -> None:
    def die(point: str) -> None:
        if point == f"journal-upgrade.{version}":
            raise Crash(point)

    FAILPOINTS.observer = die
    try:
        with pytest.raises(Crash):
            in_transaction(journal_url, migrate._upgrade)
    finally:
        FAILPOINTS.observer = None
    assert shape_of(journal_url) == {}
    with open_journal(journal_url) as journal:
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


@pytest.mark.fault
def test_an_upgrade_that_is_killed_leaves_the_older_database_and_the_next_one_ends_it(
    journal_url: str,
) -> None:
    make_first_version(journal_url)
    before = shape_of(journal_url)
    program = (
        "import sys; from lockgate.storage_core.failpoints import FAILPOINTS;"
        "from lockgate.storage_core.journal import open_journal;"
        "FAILPOINTS.arm({'journal-upgrade.0002': 'kill'}); open_journal(sys.argv[1])"
    )
    died = subprocess.run([sys.executable, "-c", program, journal_url], check=False, timeout=120)
    assert died.returncode == -9
    assert shape_of(journal_url) == before
    assert version_of(journal_url) == [VERSIONS[0]]
    with open_journal(journal_url) as journal:
        assert journal.apply(record("sales-g1")).stamp == Stamp(1, 4)


OPENING = """
import sys
from lockgate.storage_core.journal import open_journal
sys.stdin.readline()
with open_journal(sys.argv[1]) as journal:
    print(journal.identity)
"""


@pytest.mark.parametrize("prepare", [lambda url: None, make_first_version], ids=["new", "old"])
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
    assert version_of(journal_url) == [VERSIONS[-1]]


@pytest.mark.parametrize("prepare", [lambda url: None, make_first_version], ids=["new", "old"])
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


@pytest.mark.parametrize("version", ["0004", "5d1b2ea07c3a"])
def test_a_newer_or_unknown_version_is_refused_and_left_as_it_is(journal_url: str, version: str) -> None:
    with open_journal(journal_url) as journal:
        journal.apply(take("a"))
    in_transaction(journal_url, lambda c: c.execute(update(VERSION_TABLE).values(version_num=version)))
    before = shape_of(journal_url)
    with pytest.raises(JournalVersionError, match="nothing was changed") as refused:
        open_journal(journal_url)
    assert version in str(refused.value)
    assert VERSIONS[-1] in str(refused.value)
    assert "newer" in str(refused.value)
    assert shape_of(journal_url) == before
    assert version_of(journal_url) == [version]
    count = in_transaction(journal_url, lambda c: len(c.execute(select(ENTRY)).all()))
    assert count == 1


@pytest.mark.parametrize("versions", [[], ["0001", "0002"]], ids=["none", "two"])
def test_a_database_without_one_version_is_refused(journal_url: str, versions: list[str]) -> None:
    def spoil(connection: Connection) -> None:
        VERSION_TABLE.create(connection)
        for version in versions:
            connection.execute(insert(VERSION_TABLE).values(version_num=version))

    in_transaction(journal_url, spoil)
    with pytest.raises(JournalVersionError, match="a database of its own"):
        open_journal(journal_url)
    assert list(shape_of(journal_url)) == [VERSION_TABLE.name]


def test_a_database_of_another_program_is_refused_and_left_as_it_is(journal_url: str) -> None:
    in_transaction(journal_url, lambda c: c.execute(text("CREATE TABLE job (id INTEGER)")))
    with pytest.raises(InvalidInputError, match="another program has tables there named job"):
        open_journal(journal_url)
    assert list(shape_of(journal_url)) == ["job"]


def test_journals_of_one_database_know_nothing_of_each_other(journal_url: str) -> None:
    with open_journal(journal_url) as one, open_journal(journal_url, "logs") as other:
        one.apply(take("a"), "request")
        assert other.apply(take("a"), "request").stamp == Stamp(1, 1)
        assert one.identity != other.identity


def test_opening_a_database_of_this_version_does_not_import_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from lockgate.storage_core.journal import open_journal;"
        "open_journal(sys.argv[1]).close(); open_journal(sys.argv[1]).close();"
        "sys.exit('alembic' in sys.modules)"
    )
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    assert subprocess.run([sys.executable, "-c", program, url], check=False, timeout=120).returncode == 0
