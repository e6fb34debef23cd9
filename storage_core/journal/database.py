"""The database under a journal: SQLite or PostgreSQL, and what differs between the two.

A write begins by locking: `BEGIN IMMEDIATE` on SQLite, for a deferred transaction is refused at once whatever
the timeout; READ COMMITTED and the head's row on PostgreSQL, for REPEATABLE READ fails to serialise.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Double, Engine, create_engine, event, literal, literal_column
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.sql.elements import ColumnElement

from storage_core.clock import Clock, SystemClock
from storage_core.errors import InvalidInputError, JournalUnavailableError, OutcomeUnknownError

BUSY_S: Final = 10.0
"""A locked SQLite file, and a connection to PostgreSQL, are waited for so long."""

_KINDS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}


class Database:
    """One database, from one process; a fork opens connections of its own.

    Args:
        url: As `parse_url` returns it.
        clock: Takes the place of the database's, for tests: the one place where they inject time.
    """

    def __init__(self, url: URL, *, clock: Clock | None = None) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._clock = clock or (SystemClock() if self.is_sqlite else None)
        self._engine = _sqlite(url) if self.is_sqlite else _postgresql(url)
        _OPEN.add(self)

    @property
    def name(self) -> str:
        """The URL as people may see it, without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Hold a write transaction, which is durable when the block has ended.

        Raises:
            JournalUnavailableError: Nothing was applied.
            OutcomeUnknownError: The commit got no answer.
        """
        begin: dict[str, Any] = {"isolation_level": "READ COMMITTED"}
        if self.is_sqlite:
            begin = {"lockgate_begin": "BEGIN IMMEDIATE"}
        with self._connected(begin) as connection:
            transaction = connection.begin()
            try:
                yield connection
            except BaseException:
                transaction.rollback()
                raise
            try:
                transaction.commit()
            except SQLAlchemyError as error:
                if self.is_sqlite and _is_busy(error):
                    raise self._unavailable(error) from error
                raise OutcomeUnknownError(
                    f"journal {self.name}: the commit got no answer ({_first_line(error)}); it may have been "
                    "applied; the same request id asks again without doing it twice"
                ) from error
            except BaseException:
                connection.invalidate()  # cut off midway: nobody knows what stands in it
                raise

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Hold a transaction that reads one state, however long it lasts, and can write nothing.

        Raises:
            JournalUnavailableError: It cannot be reached.
        """
        begin: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._connected({} if self.is_sqlite else begin) as connection:
            transaction = connection.begin()
            try:
                yield connection
            finally:
                transaction.rollback()

    def now(self) -> ColumnElement[float]:
        """Return the time as a statement says it: the database's clock, in seconds since the epoch."""
        if self._clock is not None:
            return literal(self._clock.now_s(), Double)
        return literal_column("extract(epoch from clock_timestamp())::float8", Double)

    def timeline(self) -> ColumnElement[int]:
        """Return the server's timeline as a statement says it: it changes when a standby is promoted."""
        if self.is_sqlite:
            return literal(0)
        return literal_column("('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint")

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def forked(self) -> None:
        """Leave the parent's connections to the parent."""
        self._engine.dispose(close=False)

    @contextmanager
    def _connected(self, begin: Mapping[str, Any]) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection.execution_options(**begin)
        except DBAPIError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: SQLAlchemyError) -> JournalUnavailableError:
        said = _first_line(error)
        remedy = (
            "nothing was applied; see that it runs and can be reached (LOCKGATE_JOURNAL_URL), and try again"
        )
        if _is_busy(error):
            remedy = (
                f"another process has held its lock for {BUSY_S:g} s; nothing was applied; try again later"
            )
        elif "readonly" in said or "read-only" in said:
            remedy = "nothing was applied; mount its disk for writing, or name the primary"
        elif self.is_sqlite:
            remedy = (
                "nothing was applied; see that the file's directory exists and is writable (LOCKGATE_HOME)"
            )
        return JournalUnavailableError(f"journal {self.name}: {said}; {remedy}")


_OPEN: Final[weakref.WeakSet[Database]] = weakref.WeakSet()


def _after_fork() -> None:
    for database in _OPEN:
        database.forked()


os.register_at_fork(after_in_child=_after_fork)


def parse_url(text: str) -> URL:
    """Read a journal's URL.

    Args:
        text: `sqlite:///path` or `postgresql://user@host/name`.

    Raises:
        InvalidInputError: It is neither.
    """
    try:
        url = make_url(text)
        driver = _KINDS[url.get_backend_name()]
    except (ArgumentError, KeyError, ValueError):
        shown = text.rsplit("@", maxsplit=1)[-1][:100]  # no password in an error
        raise InvalidInputError(
            f"journal URL …{shown!r} cannot be read: use sqlite:////absolute/path/journal.db or "
            "postgresql://user@host/database"
        ) from None
    if url.get_backend_name() == "sqlite" and not url.database:
        raise InvalidInputError(
            f"journal URL {text!r} names no file: a journal in memory would be lost; use sqlite:////path"
        )
    return url.set(drivername=driver)


def _sqlite(url: URL) -> Engine:
    Path(url.database or "").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, record: Any) -> None:  # noqa: ARG001 - SQLAlchemy's
        connection.isolation_level = None  # transactions begin where `begin` below says so
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("lockgate_begin", "BEGIN"))

    return engine


def _postgresql(url: URL) -> Engine:
    return create_engine(
        url, pool_pre_ping=True, pool_size=4, max_overflow=16, connect_args={"connect_timeout": int(BUSY_S)}
    )


def _is_busy(error: SQLAlchemyError) -> bool:
    return "database is locked" in str(error) or "database is busy" in str(error)


def _first_line(error: SQLAlchemyError) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
