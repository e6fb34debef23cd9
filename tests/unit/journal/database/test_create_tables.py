"""A database gets the tables of the known families, or is refused unchanged."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, delete, inspect, select, text, update

from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.errors import InvalidInputError, JournalVersionError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Stamp, open_journal
from lockgate.storage_core.journal.checkpoint.restore import open_survivor
from lockgate.storage_core.journal.database.create_tables import _tables
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.schema import ENTRY, FAMILY
from lockgate.storage_core.journal.entries.family import JOURNAL, known_families
from lockgate.storage_core.journal.entries.lease_entries import FreeLease, Lease, TakeLease
from tests.support.commit.destination import Crash


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
                for table in _tables(family):
                    table.drop(connection)
        connection.execute(delete(FAMILY).where(FAMILY.c.name != JOURNAL.name))

    in_transaction(url, back)


def tables_of(url: str) -> list[str]:
    found: list[str] = in_transaction(url, lambda connection: sorted(inspect(connection).get_table_names()))
    return found


def families_of(url: str) -> dict[str, int]:
    found = in_transaction(url, lambda connection: connection.execute(select(FAMILY)).all())
    return dict(map(tuple, found))


def test_missing_families_are_created_and_existing_data_is_kept(journal_url: str) -> None:
    make_without_families(journal_url)
    assert families_of(journal_url) == {"journal": 1}
    with open_journal(journal_url) as journal:
        with journal.reading() as reading:
            assert [entry.request_id for entry in reading.entries(0, 10)] == [
                "request-a", "request-b", "request-free",
            ]  # fmt: skip
            assert [lease.standing for lease in reading.where(Lease, {})] == ["held", "free"]
        assert journal.apply(take("a"), "request-a").is_repeat
        assert journal.apply(record("sales-g1")).stamp == Stamp(1, 4)
    assert families_of(journal_url) == known_families().versions


@pytest.mark.parametrize("family", ["blobs", "journal"])
def test_a_creation_that_dies_after_a_family_leaves_an_empty_database(journal_url: str, family: str) -> None:
    def die(point: str) -> None:
        if point == f"journal-create.{family}":
            raise Crash(point)

    FAILPOINTS.observer = die
    try:
        with pytest.raises(Crash):
            open_journal(journal_url)
    finally:
        FAILPOINTS.observer = None
    assert tables_of(journal_url) == []
    with open_journal(journal_url) as journal:
        assert journal.apply(take("a")).stamp == Stamp(1, 1)


OPENING = """
import sys
from lockgate.storage_core.journal import open_journal
sys.stdin.readline()
with open_journal(sys.argv[1]) as journal:
    print(journal.identity)
"""


def test_processes_that_open_a_database_at_the_same_instant_open_the_same_journal(journal_url: str) -> None:
    command = [sys.executable, "-c", OPENING, journal_url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    with open_journal(journal_url) as journal:
        assert answers == [journal.identity] * 2


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
    assert families_of(journal_url) == known_families().versions


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"version": 2}, "entry family 'blobs' in version 2, and this program knows version 1;"),
        ({"version": 0}, "entry family 'blobs' in version 0, and this program knows version 1;"),
        ({"name": "tables"}, "entry family 'tables' in version 1, and this program lacks it;"),
    ],
    ids=["newer", "older", "unknown"],
)
def test_a_database_with_another_family_is_refused_and_not_changed(
    journal_url: str, changed: dict[str, object], named: str
) -> None:
    with open_journal(journal_url) as journal:
        journal.apply(take("a"))
    other = update(FAMILY).where(FAMILY.c.name == "blobs").values(**changed)
    in_transaction(journal_url, lambda connection: connection.execute(other))
    before = tables_of(journal_url), families_of(journal_url)
    for opening in (open_journal, lambda url: open_survivor(url, "main")):
        with pytest.raises(JournalVersionError, match="nothing was changed; use the release") as refused:
            opening(journal_url)
        assert named in str(refused.value)
    assert (tables_of(journal_url), families_of(journal_url)) == before
    assert in_transaction(journal_url, lambda connection: len(connection.execute(select(ENTRY)).all())) == 1


def test_a_database_of_another_program_is_refused_and_not_changed(journal_url: str) -> None:
    in_transaction(journal_url, lambda connection: connection.execute(text("CREATE TABLE job (id INTEGER)")))
    with pytest.raises(InvalidInputError, match="another program has tables there named job"):
        open_journal(journal_url)
    assert tables_of(journal_url) == ["job"]


def test_journals_in_one_database_are_independent_of_each_other(journal_url: str) -> None:
    with open_journal(journal_url) as one, open_journal(journal_url, "logs") as other:
        one.apply(take("a"), "request")
        assert other.apply(take("a"), "request").stamp == Stamp(1, 1)
        assert one.identity != other.identity


def test_describing_the_families_imports_no_protocol_and_no_store() -> None:
    program = """
import sys
from lockgate.storage_core.journal.entries.family import known_families
known_families()
core = "lockgate.storage_core"
heavy = ("boto3", f"{core}.stores.s3.store", f"{core}.commit.job", f"{core}.blobs.server.blob_server")
sys.exit(any(name in sys.modules for name in heavy))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0
