"""Recognise a database's damage in its errors, and name the damaged table or index.

PostgreSQL's errors name a file or a number. Its catalogue knows the relation, so it is asked on another
connection, once such an error has come.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

RESTORE: Final = "name another file, or restore the journal: `lockgate journal restore`"

SQLITE_WORDS: Final = (
    "malformed",
    "Could not decode to UTF-8",
    "unsupported file format",
    "codec can't decode",  # Python's, for a message of SQLite that quotes a damaged schema
)
"""Words of SQLite about damage."""

_INTERNAL: Final = "XX"
"""Class of the SQLSTATEs of damaged data, of a damaged index, and of what PostgreSQL did not expect."""

_CONCURRENT: Final = ("tuple concurrently updated", "tuple concurrently deleted")
"""PostgreSQL's words about two commands at once, which have a state of that class, too."""

_FILE: Final = frozenset({"58P01", "58030"})
"""SQLSTATEs of a missing file, and of a file that cannot be read or written."""

_FILE_WORDS: Final = re.compile(
    r"could not (open|read|seek to end of)( \w+)*( \d+)?( in)?( relation mapping)? file"
    r"|could not read blocks? |could not access status of transaction|could not open directory"
    r"|invalid page in block|relation mapping file|database subdirectory"
)
"""Words of PostgreSQL about files of its data. A refused connection has these alone, and no SQLSTATE."""

_BY_FILE: Final = re.compile(r"(?:base/\d+|global|pg_tblspc/(?P<space>\d+)/[^/\s]+/\d+)/(?P<node>\d+)")
_BY_TOAST: Final = re.compile(r"pg_toast_(?P<owner>\d+)")
_BY_NAME: Final = re.compile(r'index "(?P<name>[^"]+)"')

_RELATION: Final = text(
    "SELECT c.relname, c.relkind, c.oid::regclass::text, t.oid::regclass::text, o.oid::regclass::text "
    "FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid "
    "LEFT JOIN pg_class t ON t.oid = i.indrelid "
    "LEFT JOIN pg_class o ON o.reltoastrelid IN (c.oid, t.oid) AND o.reltoastrelid <> 0 "
    "WHERE c.oid = CASE WHEN :node <> 0 THEN pg_filenode_relation(:space, :node) "
    "WHEN :name <> '' THEN to_regclass(:name) "
    "ELSE (SELECT reltoastrelid FROM pg_class WHERE oid = :owner) END"
)


class Damaged(msgspec.Struct, frozen=True):
    """A damaged part of a database.

    Attributes:
        name: Such as `index entry_pkey of table entry`; empty if it is not known.
        remedy: What to do.
    """

    name: str = ""
    remedy: str = RESTORE

    def finding(self, message: str) -> str:
        """Return a line about it for `lockgate journal verify`."""
        return f"{self.name or 'the database'} is damaged: {message}; {self.remedy}"


def is_damage(error: Exception) -> bool:
    """Return whether the database reports a damaged or missing page, table, index or file."""
    cause: Any = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.DatabaseError):
        return any(words in str(cause) for words in SQLITE_WORDS)
    if cause is None:
        return False
    state = getattr(cause, "sqlstate", None)
    if state is None or state in _FILE:
        return _FILE_WORDS.search(str(cause)) is not None and "No space left" not in str(cause)
    return state.startswith(_INTERNAL) and not any(words in str(cause) for words in _CONCURRENT)


def is_cut_off(error: DBAPIError) -> bool:
    """Return whether the connection broke: a damaged page may end the process that reads it."""
    return error.connection_invalidated


def find_damaged(engine: Engine, error: Exception) -> Damaged:
    """Return what an error is about, as far as the database can still say.

    Args:
        engine: Engine of the damaged database; another connection than that of the error is used.
        error: An error for which `is_damage` holds.
    """
    message = str(getattr(error, "orig", None))
    if engine.dialect.name == "sqlite":
        return Damaged()
    try:
        with engine.connect() as connection:
            return _relation(connection, message) or Damaged()
    except SQLAlchemyError:  # the catalogue is damaged, too
        return Damaged()


def _relation(connection: Connection, message: str) -> Damaged | None:
    asked: dict[str, Any] = {"space": 0, "node": 0, "name": "", "owner": 0}
    if found := _BY_FILE.search(message):
        asked.update(node=int(found["node"]), space=int(found["space"] or 0))
        if "global/" in found[0]:
            asked["space"] = connection.exec_driver_sql(
                "SELECT oid FROM pg_tablespace WHERE spcname = 'pg_global'"
            ).scalar_one()
    elif found := _BY_TOAST.search(message):
        asked["owner"] = int(found["owner"])
    elif found := _BY_NAME.search(message):
        asked["name"] = found["name"]
    else:
        return None
    row = connection.execute(_RELATION, asked).one_or_none()
    if row is None:
        return None
    name, kind, qualified, table, owner = row
    of = f"the long values of table {owner}" if owner else f"table {table}"
    if kind == "i":
        return Damaged(
            name=f"index {name} of {of}",
            remedy=f"rebuild it: REINDEX INDEX {qualified}",
        )
    return Damaged(name=of if owner else f"table {qualified}")
