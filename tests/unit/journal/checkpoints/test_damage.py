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

from lockgate.storage_core.errors import LockgateError
from tests.support.journal.checkpoints import JournalWorld
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


DAMAGES: Final[Sequence[tuple[Damage, int]]] = ((flip_a_bit, 11), (scribble, 13), (empty, 20))
"""Each damage, and of how many pages one is damaged in `make test`."""


NO_COPY: Final[Mapping[bytes, Sequence[str]]] = {
    b"lease": ["renewed_s", "dropped_s"],
    b"holder": ["journal", "holder", "renewed_s"],
    b"head": ["safe_since_s", "timeline"],
    b"entry": ["payload", "at_s"],  # of an entry whose rows a later one replaced
}
"""Columns in which a value that can be read may be wrong without a trace."""

NO_FOLD: Final = (b"request", b"epoch")
"""Tables that no fold of the entries gives."""


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
    assert harmful >= 5
    assert missed == []


def is_sound(journals: JournalWorld) -> bool:
    """Return whether neither opening the journal nor verifying it finds anything."""
    try:
        return not journals.verify().findings
    except LockgateError:  # a journal that cannot be opened does not pass for a sound one
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
            rows[table] = [tuple(compress(row, kept)) for row in found if table not in NO_FOLD]
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
