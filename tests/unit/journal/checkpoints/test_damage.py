"""Verifying finds damage of a database's pages and indexes, and of the columns that no fold reads."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import compress
from pathlib import Path
from typing import Any, Final

import pytest

from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal import Stamp
from tests.support.journal.checkpoints import JournalWorld, take
from tests.support.postgres import Server
from tests.support.soak import rounds, sample

pytestmark = pytest.mark.slow

PAGE: Final = 4096
Damage = Callable[[bytearray, random.Random], None]


def flip_a_bit(page: bytearray, rng: random.Random) -> None:
    page[used(page, rng)] ^= 1 << rng.randrange(8)


def scribble(page: bytearray, rng: random.Random) -> None:
    start = min(used(page, rng), PAGE - 16)
    page[start : start + 16] = rng.randbytes(16)


def empty(page: bytearray, rng: random.Random) -> None:
    page[:] = bytes(PAGE)


def used(page: bytearray, rng: random.Random) -> int:
    """Return the place of a byte that is not 0: most of a small table's page is."""
    return rng.choice([place for place, byte in enumerate(page) if byte] or [0])


DAMAGES: Final[Sequence[tuple[Damage, int]]] = ((flip_a_bit, 7), (scribble, 9), (empty, 14))
"""Each damage, and of how many pages one is damaged in `make test`."""


NO_COPY: Final[Mapping[bytes, Sequence[str]]] = {
    b"lease": ["renewed_s", "dropped_s"],
    b"holder": ["journal", "holder", "renewed_s"],
    b"head": ["safe_since_s", "timeline"],
    b"entry": ["payload", "at_s"],  # of an entry whose rows a later one replaced
}
"""Columns in which a value that can be read may be wrong without a trace."""


def test_verifying_finds_every_damaged_page_that_changes_a_row_or_an_index(
    journals: JournalWorld, tmp_path: Path, summarise: Callable[[str], None]
) -> None:
    with_history(journals)
    path = tmp_path / "journal.db"
    sound, rng = path.read_bytes(), random.Random(12)
    contents = contents_of(path)
    harmful, missed = 0, list[str]()
    for number, (damage, every) in enumerate(DAMAGES):
        for at in sample(range(len(sound) // PAGE), every, offset=number):
            page = bytearray(sound[at * PAGE : (at + 1) * PAGE])
            damage(page, rng)
            path.write_bytes(sound[: at * PAGE] + page + sound[(at + 1) * PAGE :])
            if contents_of(path) == contents:  # no row and no index uses the changed bytes
                continue
            harmful += 1
            if is_sound(journals):
                missed.append(f"page {at + 1}: {damage.__name__}")
            for beside in ("-wal", "-shm"):
                path.with_name(path.name + beside).unlink(missing_ok=True)
    summarise(f"{harmful - len(missed)} of {harmful} damaged pages found")
    assert harmful >= 8
    assert missed == []


def is_sound(journals: JournalWorld) -> bool:
    """Return whether neither opening the journal nor verifying it finds anything."""
    try:
        return not journals.verify().findings
    except Exception:  # noqa: BLE001 - a journal that cannot be opened does not pass for a sound one
        return False


def contents_of(path: Path) -> Any:
    """Return the rows and what SQLite says of the file, without the columns that have no second copy."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.text_factory = bytes
    try:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        rows = dict[bytes, Any]()
        for (table,) in tables:
            found = connection.execute(f"SELECT * FROM {table.decode()} NOT INDEXED")
            kept = [column[0] not in NO_COPY.get(table, ()) for column in found.description]
            rows[table] = [tuple(compress(row, kept)) for row in found]
        return rows, connection.execute("PRAGMA integrity_check").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return repr(error)
    finally:
        connection.close()


@pytest.fixture
def journals(tmp_path: Path) -> JournalWorld:
    return JournalWorld(tmp_path, f"sqlite:///{tmp_path / 'journal.db'}", "")


def with_history(journals: JournalWorld) -> None:
    """Write a journal with pruned entries, a checkpoint among the others, and entries after it."""
    for number in range(rounds(3, 8)):
        journals.live(number)
    journals.checkpoint()
    assert journals.verify().findings == ()
    journals.prune()
    journals.live(11)
    journals.checkpoint()
    journals.live(12)
    assert journals.verify().findings == ()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            "UPDATE request SET at_s = at_s + 1 WHERE sequence = 2",
            r"request \w+: at_s is .* the checkpoint has",
        ),
        ("UPDATE request SET result = 'null' WHERE sequence = 2", r"request \w+: result is 'null'"),
        ("DELETE FROM request WHERE sequence = 2", r"request \w+ is missing, and the checkpoint has it"),
        (
            "UPDATE request SET request_id = 'x' WHERE sequence = 2",
            r"request x is there, and the checkpoint lacks",
        ),
        ("UPDATE entry SET at_s = at_s + 1 WHERE sequence = 14", r"request \w+: at_s is"),
        ("UPDATE entry SET request_id = 'x' WHERE sequence = 14", r"request x is there"),
        (
            "UPDATE epoch SET reason = 'old'",
            r"Epoch\(.*'old'.*, and the checkpoint has .*'new'",
        ),
        (
            "UPDATE head SET requests_since_s = -1",
            r"request ids from -1.0 on, and the checkpoint from 0",
        ),
        ("UPDATE head SET pruned_sequence = 15", r"entry 1\.14 is there, and .* up to 15 were pruned"),
    ],
)
def test_verifying_compares_what_no_entry_makes_with_the_newest_checkpoint(
    journals: JournalWorld, damage: str, words: str
) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.verify()
    journals.prune()
    journals.live(2)
    journals.checkpoint()
    journals.live(3)
    journals.run_sql(damage)

    found = journals.verify()

    with pytest.raises(MalformedJournalError, match=words):
        found.check()


def test_a_checkpoint_with_other_request_ids_is_not_verified(journals: JournalWorld) -> None:
    journals.live()
    journals.checkpoint()
    journals.run_sql("UPDATE entry SET request_id = 'x' WHERE sequence = 3")

    assert journals.verify().checkpoints == ()
    assert journals.prune().up_to is None


def test_request_ids_that_pruning_has_forgotten_are_no_finding(journals: JournalWorld) -> None:
    journals.live(1)
    journals.checkpoint()
    journals.clock.sleep(1000)
    journals.live(2)
    journals.verify()
    assert journals.prune(request_retention_s=500).requests == 13

    assert journals.verify().findings == ()


def test_nothing_is_pruned_after_a_damaged_index_was_found(journals: JournalWorld, tmp_path: Path) -> None:
    journals.live()
    journals.checkpoint()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        of_index = "SELECT rootpage FROM sqlite_master WHERE name = 'lease_by_holder'"
        (number,) = connection.execute(of_index).fetchone()
    with (tmp_path / "journal.db").open("r+b") as file:
        file.seek((number - 1) * PAGE)
        file.write(bytes(PAGE))

    found = journals.verify()

    assert "the file is damaged" in found.findings[0]
    assert found.checkpoints == ()
    assert journals.prune().up_to is None


@pytest.mark.requires("postgres")
def test_amcheck_finds_an_index_that_lacks_a_row(postgres: Server, tmp_path: Path) -> None:
    journals = JournalWorld(tmp_path, postgres.new_database("lacking"), "")
    journals.live()
    unchecked = journals.verify()
    assert (unchecked.pages, unchecked.findings) == ("", ())
    assert "CREATE EXTENSION amcheck" in unchecked.pages_unchecked
    postgres.run_sql("CREATE EXTENSION amcheck", "lacking")
    checked = journals.verify()
    assert (checked.pages, checked.findings) == ("amcheck", ())

    maintain = "UPDATE pg_index SET indisready = {} WHERE indexrelid = 'lease_by_holder'::regclass"
    postgres.run_sql(maintain.format("false"), "lacking")
    [stamp] = journals.apply(take("unindexed"))
    postgres.run_sql(maintain.format("true"), "lacking")

    [finding] = journals.verify().findings
    assert "index lease_by_holder of table lease is damaged" in finding
    assert "REINDEX INDEX lease_by_holder" in finding
    assert stamp == Stamp(1, 14)


@pytest.mark.requires("postgres")
def test_a_user_who_may_not_call_amcheck_is_told_what_to_grant(postgres: Server, tmp_path: Path) -> None:
    postgres.run_sql("CREATE ROLE plain LOGIN")
    url = postgres.new_database("granted")
    postgres.run_sql("GRANT ALL ON SCHEMA public TO plain", "granted")
    postgres.run_sql("CREATE EXTENSION amcheck", "granted")
    journals = JournalWorld(tmp_path, url.replace("lockgate@", "plain@"), "")
    journals.live()

    found = journals.verify()

    assert (found.pages, found.findings) == ("", ())
    assert "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO plain" in found.pages_unchecked
    postgres.run_sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO plain", "granted")
    assert journals.verify().pages == "amcheck"
