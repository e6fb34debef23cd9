"""Damage of PostgreSQL's files is reported as damage: by verifying, and by every read and write.

All damaged databases are copies of one sound database. They are damaged while the server is stopped.
"""

from __future__ import annotations

import random
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from lockgate.storage_core.errors import (
    ConflictError,
    JournalUnavailableError,
    LockgateError,
    MalformedJournalError,
)
from lockgate.storage_core.journal import open_journal
from lockgate.storage_core.journal.entries.claim_entries import ClaimName
from tests.support.cli import Run
from tests.support.journal.checkpoints import DEST, JournalWorld, take, task
from tests.support.postgres import UNSYNCED, Server, primary
from tests.support.soak import rounds

pytestmark = [pytest.mark.slow, pytest.mark.requires("postgres")]

PAGE: Final = 8192
HEADER: Final = 24
ANCIENT: Final = (3_000_000_000).to_bytes(4, "little")
"""A transaction so old that PostgreSQL has no file with its outcome."""

Damage = Callable[[Path, random.Random], None]


def flip_bits(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(8):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def scribble(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content) // PAGE) * PAGE + rng.randrange(PAGE - 64)
    content[at : at + 64] = rng.randbytes(64)
    path.write_bytes(content)


def scribble_header(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content) // PAGE) * PAGE
    content[at : at + HEADER] = rng.randbytes(HEADER)
    path.write_bytes(content)


def empty_page(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content) // PAGE) * PAGE
    content[at : at + PAGE] = bytes(PAGE)
    path.write_bytes(content)


def cut_off(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size // PAGE) * PAGE])


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def age(path: Path, rng: random.Random) -> None:
    """Let all rows be of a transaction whose outcome is not known: a missing file of `pg_xact`."""
    content = bytearray(path.read_bytes())
    for page in range(0, len(content), PAGE):
        content[page + 10] &= 0xFB  # not all rows are visible to all
        lower = int.from_bytes(content[page + 12 : page + 14], "little")
        for pointer in range(page + HEADER, page + lower, 4):
            item = int.from_bytes(content[pointer : pointer + 4], "little")
            if item >> 15 & 3 != 1:  # it has no row
                continue
            row = page + (item & 0x7FFF)
            content[row : row + 4] = ANCIENT
            content[row + 21] &= 0xFC  # no hint that it was committed
    path.write_bytes(content)


DAMAGES: Final[Mapping[str, tuple[str, Damage]]] = {
    f"{damage.__name__} {relation}": (relation, damage)
    for relation, damages in {
        "entry": (flip_bits, scribble, scribble_header, empty_page, cut_off, remove, age),
        "entry_pkey": (scribble_header, empty_page, cut_off, remove),
        "toast of claim": (scribble, scribble_header, empty_page, remove),
        "toast index of claim": (scribble_header, remove),
        "head": (scribble_header, remove, age),
        "head_pkey": (remove,),
        "task_attempt": (flip_bits, cut_off, age),
        "request": (scribble_header, age),
        "lease_by_holder": (scribble, empty_page, remove),
        "pg_attribute": (remove,),
    }.items()
    for damage in damages
}
"""Which relation is damaged, and how."""

HEAPS: Final = frozenset({"entry", "head", "task_attempt", "request", "toast of claim"})
"""Relations whose damage is found without amcheck, too."""

NAMES: Final[Mapping[str, str]] = {
    "entry": "table entry|entries|request",
    "toast of claim": "table claim",
    "toast index of claim": "table claim",
    "pg_attribute": "the database",
}
"""What a finding names, if it is not the relation itself."""

UNNAMED: Final = "the database is damaged: could not access status of transaction"
"""PostgreSQL does not say in which table it found the transaction."""

CRASHES: Final = "the connection broke while table|server closed the connection|terminat|rolled the transac"
"""Words about a damaged page that ended the process which read it: PostgreSQL gives no other answer then."""

NO_COPY: Final[Mapping[str, tuple[str, ...]]] = {
    "lease": ("renewed_s", "dropped_s"),
    "holder": ("journal", "holder", "renewed_s"),
    "head": ("safe_since_s", "timeline"),
    "entry": ("payload", "at_s"),
}
"""Columns in which a value that can be read may be wrong without a trace."""


@dataclass(frozen=True)
class Copies:
    """A server with a sound database, and a copy of it for each damage.

    Attributes:
        root: Folder of the sound database's checkpoints.
        contents: Result of `contents_of` for the sound database.
        databases: Name of each damage's database.
    """

    server: Server
    root: Path
    contents: Any
    databases: Mapping[str, str]

    def url(self, damage: str) -> str:
        """Return the URL of a damaged database, once the server answers: the last test may have ended it."""
        self.run_sql("SELECT 1", "postgres")
        return self.server.url_of(self.databases[damage])

    def run_sql(self, statement: str, database: str) -> None:
        """Run a statement that may be repeated, until the server answers.

        A process that a damaged page ends breaks its own connection first. The server ends all others a
        moment later: an answer in between does not mean that the next connection holds.
        """
        for attempt in Retrying(
            retry=retry_if_exception_type(psycopg.OperationalError),
            stop=stop_after_delay(30),
            wait=wait_fixed(0.05),
            reraise=True,
        ):
            with attempt:
                self.server.run_sql(statement, database)

    def journals(self, damage: str, root: Path) -> JournalWorld:
        """Return a damaged journal with checkpoints of its own."""
        shutil.copytree(self.root / "checkpoints", root / "checkpoints", dirs_exist_ok=True)
        return JournalWorld(root, self.url(damage), "")


@pytest.fixture(scope="module", params=range(rounds(1, 10)))
def copies(request: pytest.FixtureRequest) -> Iterator[Copies]:
    rng = random.Random(request.param)
    # Not below pytest's own directory, which each new run of pytest closes to other users.
    with (
        tempfile.TemporaryDirectory(prefix="lockgate-damaged-", dir="/var/tmp") as folder,
        primary(Path(folder) / "server", **UNSYNCED) as server,
    ):
        root = Path(folder)
        url = server.new_database("sound")
        server.run_sql("CREATE EXTENSION amcheck", "sound")
        with_history(JournalWorld(root, url, ""))
        server.run_sql("VACUUM", "sound")
        contents, files = contents_of(url), files_of(server, "sound")
        databases = {damage: f"copy_{number}" for number, damage in enumerate(DAMAGES)}
        folders = dict[str, Path]()
        for damage, database in databases.items():
            server.new_database(database, template="sound")
            oid = server.run_sql(f"SELECT oid FROM pg_database WHERE datname = '{database}'")
            folders[damage] = server.root / "data" / "base" / oid
        server.stop()
        for damage, (relation, change) in DAMAGES.items():
            change(folders[damage] / files[relation], rng)
        server.start()
        yield Copies(server, root, contents, databases)


def files_of(server: Server, database: str) -> dict[str, str]:
    """Return the name of each relation's file."""
    toast = "SELECT reltoastrelid FROM pg_class WHERE relname = 'claim'"
    found = {
        "toast of claim": f"({toast})",
        "toast index of claim": f"(SELECT indexrelid FROM pg_index WHERE indrelid = ({toast}))",
    }
    relations = {relation for relation, _ in DAMAGES.values()}
    path = "SELECT pg_relation_filepath({})"
    return {
        name: Path(server.run_sql(path.format(found.get(name, repr(name))), database)).name
        for name in relations
    }


def with_history(journals: JournalWorld) -> None:
    """Write some pages of each table, and long values that PostgreSQL keeps apart."""
    for number in range(3):
        journals.live(number)
    journals.checkpoint()
    assert journals.verify().findings == ()
    journals.prune()
    journals.apply(*(task(1, part) for part in range(100)))
    journals.apply(*(ClaimName(store=DEST, name=f"long-{n}", body=secrets.token_hex(4000)) for n in range(8)))
    journals.checkpoint()
    assert journals.verify().findings == ()


def contents_of(url: str) -> Any:
    """Return the rows and what amcheck says, without the columns that have no second copy."""
    try:
        with psycopg.connect(url) as connection:
            connection.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
            ours = "relkind = 'r' AND relnamespace = 'public'::regnamespace"
            names = connection.execute(f"SELECT relname FROM pg_class WHERE {ours}").fetchall()
            rows, damages = dict[str, Any](), list[Any]()
            for (table,) in names:
                found = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
                kept = [column.name not in NO_COPY.get(table, ()) for column in found.description or ()]
                rows[table] = sorted(repr(tuple(compress(row, kept))) for row in found)
                damages += connection.execute("SELECT * FROM verify_heapam(%s)", [table]).fetchall()
            connection.execute(
                "SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class ON "
                f"pg_class.oid = i.indrelid WHERE {ours}"
            )
            return rows, damages
    except (psycopg.Error, UnicodeDecodeError) as error:
        return repr(error)


@pytest.mark.parametrize("damage", DAMAGES)
def test_verifying_reports_damaged_files_and_names_what_is_damaged(
    copies: Copies, damage: str, tmp_path: Path
) -> None:
    contents = contents_of(copies.url(damage))
    relation, _ = DAMAGES[damage]
    if contents == copies.contents:  # no row and no index uses the changed bytes
        return

    found = verified(copies.journals(damage, tmp_path))

    assert re.search(f"{NAMES.get(relation, relation)}|{UNNAMED}|{CRASHES}", found), found
    if relation in HEAPS:
        copies.run_sql("DROP EXTENSION IF EXISTS amcheck", copies.databases[damage])
        assert verified(copies.journals(damage, tmp_path))


def verified(journals: JournalWorld) -> str:
    """Return the findings, or the error with which verifying ends."""
    try:
        return "\n".join(journals.verify().findings)
    except LockgateError as error:
        if not is_about_damage(error):
            raise
        return str(error)


def is_about_damage(error: LockgateError) -> bool:
    return isinstance(error, MalformedJournalError) or re.search(CRASHES, str(error)) is not None


@pytest.mark.parametrize("damage", DAMAGES)
def test_reading_and_writing_beside_damaged_files_works_or_reports_damage(
    copies: Copies, damage: str, tmp_path: Path
) -> None:
    calls: Sequence[Callable[[JournalWorld], object]] = (
        lambda journals: journals.rows(),
        lambda journals: journals.apply(task(1, 1000)),
        lambda journals: journals.apply(ClaimName(store=DEST, name="long-1", body="AAAA")),
        lambda journals: journals.apply(take("job:1-a")),
        lambda journals: journals.checkpoint(),
    )
    for call in calls:
        try:
            call(copies.journals(damage, tmp_path))
        except ConflictError:
            continue  # the row is there, and can be read
        except LockgateError as error:
            if not is_about_damage(error):
                raise


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("remove entry", "wrong: table entry is damaged: could not open file"),
        ("remove lease_by_holder", "rebuild it: REINDEX INDEX lease_by_holder"),
        ("remove pg_attribute", "the database is damaged: .*restore the journal"),
        (
            "remove head_pkey",
            "index head_pkey of table head is damaged: .*rebuild it: REINDEX INDEX head_pkey",
        ),
    ],
)
def test_the_command_verify_ends_with_the_code_of_findings(
    copies: Copies, damage: str, words: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_JOURNAL_URL", copies.url(damage))

    done = run("journal", "verify")

    assert done.exit_code == 3
    assert re.search(words, done.output)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("invalid memory alloc request size 1073741824", MalformedJournalError),
        ("tuple concurrently updated", JournalUnavailableError),
    ],
)
def test_an_internal_error_is_damage_unless_two_commands_met(
    postgres: Server, words: str, error: type[LockgateError]
) -> None:
    name = f"internal_{error.__name__}"
    raising = f"DO $$ BEGIN RAISE EXCEPTION '{words}' USING ERRCODE = 'XX000'; END $$"
    with (
        open_journal(postgres.new_database(name)) as journal,
        pytest.raises(error, match=words),
        journal.database.write() as connection,
    ):
        connection.exec_driver_sql(raising)
