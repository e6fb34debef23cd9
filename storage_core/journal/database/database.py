"""The database under a journal: SQLite or PostgreSQL, and what differs between the two.

A write begins by locking: `BEGIN IMMEDIATE` on SQLite, for a deferred transaction is refused at once whatever
the timeout; READ COMMITTED and the head's row on PostgreSQL, for REPEATABLE READ fails to serialise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Double, Engine, bindparam, func, literal, literal_column
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, TimeoutError  # noqa: A004 - of a pool
from sqlalchemy.sql.elements import ColumnElement

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import (
    FencedError,
    InvalidInputError,
    JournalUnavailableError,
    OutcomeUnknownError,
)
from lockgate.storage_core.forks import FORKS, Forkable, leave_to_parent
from lockgate.storage_core.journal.database.engines import postgresql_engine, sqlite_engine
from lockgate.storage_core.journal.database.errors import explain, first_line, refused_commit

BUSY_S: Final = 10.0
"""A lock, and a connection to PostgreSQL, are waited for so long."""

NOW: Final = "now_s"
"""The parameter of `told_now`."""

_SERVERS_NOW: Final = literal_column("extract(epoch from clock_timestamp())::float8", Double)
_SERVERS_TIMELINE: Final = literal_column(
    "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint", BigInteger
)

_KINDS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}


class Database(Forkable):
    """One database, from one process; a fork opens connections of its own.

    Args:
        url: As `parse_url` returns it.
        clock: Takes the place of the database's, for tests: the one place where they inject time.
        busy_s: How long a lock, and a connection to PostgreSQL, are waited for.
        is_primary: Refuse a PostgreSQL server that is a standby.
        silence_s: Of PostgreSQL: a server that says nothing for so long, while it is asked, is given up.

    Raises:
        InvalidInputError: It is a directory.
        JournalUnavailableError: The file's directory cannot be made.
    """

    def __init__(
        self,
        url: URL,
        *,
        clock: Clock | None = None,
        busy_s: float = BUSY_S,
        is_primary: bool = False,
        silence_s: float | None = None,
    ) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._clock = clock or (SystemClock() if self.is_sqlite else None)
        self._engine = (
            self._sqlite(busy_s)
            if self.is_sqlite
            else postgresql_engine(url, busy_s, is_primary=is_primary, silence_s=silence_s)
        )
        FORKS.register(self)

    @property
    def name(self) -> str:
        """The URL as people may see it, without its password."""
        secret = [name for name in self.url.query if "password" in name]
        shown = self.url.difference_update_query(secret).set(drivername=self.url.get_backend_name())
        return shown.render_as_string(hide_password=True)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Hold a write transaction, which is durable when the block has ended.

        Raises:
            NotAppliedError: Nothing was applied: see `trouble.explain`; mostly a `JournalUnavailableError`.
            OutcomeUnknownError: The commit got no answer.
        """
        begin: dict[str, Any] = {"isolation_level": "READ COMMITTED"}
        if self.is_sqlite:
            begin = {"lockgate_begin": "BEGIN IMMEDIATE"}
        with self._begun(begin, self._commit) as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Hold a transaction that reads one state, however long it lasts, and can write nothing.

        Hold it for reading only: PostgreSQL ends one in which nothing was asked for a minute, unless
        `Reading.stay_open` was called.

        Raises:
            NotAppliedError: It cannot be read: see `trouble.explain`; mostly a `JournalUnavailableError`.
        """
        begin: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        end = Connection.rollback
        if not self.is_sqlite:
            end = Connection.commit  # of nothing; at a rollback the driver forgets the statements it prepared
        with self._begun({} if self.is_sqlite else begin, end) as connection:
            yield connection

    def now(self) -> ColumnElement[float]:
        """Return the time as a statement says it: the database's clock, in seconds since the epoch."""
        return _SERVERS_NOW if self._clock is None else literal(self._clock.now_s(), Double)

    def told_now_s(self) -> float | None:
        """Return the time where it is not the server that tells it: see `told_now`."""
        return None if self._clock is None else self._clock.now_s()

    def timeline(self) -> ColumnElement[int]:
        """Return the server's timeline as a statement says it: it changes when a standby is promoted."""
        return timeline(self.is_sqlite)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def before_fork(self) -> None:
        """Close what a child must not inherit: connections to SQLite that are at rest."""
        if self.is_sqlite:
            self._engine.dispose()

    def after_fork_in_child(self) -> None:
        """Leave the parent's connections to the parent."""
        leave_to_parent(self._engine.pool)
        self._engine.dispose(close=False)

    @contextmanager
    def _begun(self, begin: Mapping[str, Any], end: Callable[[Connection], None]) -> Iterator[Connection]:
        """Hold a transaction, which is rolled back unless `end` is reached and commits it."""
        if self.is_sqlite and FORKS.is_tainted:
            raise JournalUnavailableError(
                f"journal {self.name}: this process was forked amid a transaction of its parent, and SQLite "
                "cannot be used in such a one; nothing was applied; fork earlier, spawn, or use PostgreSQL"
            )
        process = os.getpid()
        with FORKS.sqlite_transaction() if self.is_sqlite else nullcontext():
            try:
                connection = self._engine.connect()
                try:
                    connection.execution_options(**begin).begin()
                    yield connection
                    self._refuse_in_child(process)
                    end(connection)
                finally:
                    if os.getpid() == process:
                        connection.close()
                    else:
                        leave_to_parent(connection)
            except (DBAPIError, TimeoutError) as error:
                raise explain(self.name, error) from error

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except DBAPIError as error:
            if refused_commit(error):
                raise
            connection.invalidate()
            raise OutcomeUnknownError(
                f"journal {self.name}: the commit got no answer ({first_line(error)}); it may have been "
                "applied; the same request id asks again without doing it twice"
            ) from error
        except BaseException:
            connection.invalidate()  # cut off midway: nobody knows what stands in it
            raise

    def _refuse_in_child(self, process: int) -> None:
        if os.getpid() != process:
            raise FencedError(
                f"journal {self.name}: this transaction belongs to process {process}, of which this one is a "
                "fork; stop, and change nothing more"
            )

    def _sqlite(self, busy_s: float) -> Engine:
        try:
            if Path(self.url.database or "").is_dir():
                raise InvalidInputError(f"journal {self.name} is a directory: name a file in it")
            return sqlite_engine(self.url, busy_s)
        except OSError as error:
            raise explain(self.name, error) from error


def told_now(for_sqlite: bool) -> ColumnElement[float]:
    """Return the time as a statement says it that is built once: by the clock that fills in `NOW`, if any."""
    told = bindparam(NOW, type_=Double)
    return told if for_sqlite else func.coalesce(told, _SERVERS_NOW)


def timeline(for_sqlite: bool) -> ColumnElement[int]:
    """Return the server's timeline as a statement says it: it changes when a standby is promoted."""
    return literal_column("0") if for_sqlite else _SERVERS_TIMELINE


def parse_url(text: str) -> URL:
    """Read a journal's URL.

    Args:
        text: `sqlite:////absolute/path` or `postgresql://user@host/name`.

    Raises:
        InvalidInputError: It is neither; the message shows no password.
    """
    try:
        url = make_url(text)
        driver = _KINDS[url.get_backend_name()]
    except (ArgumentError, KeyError, ValueError):
        scheme, _, rest = text.rpartition("@")[2].partition("://")
        shown = scheme if rest else text.rpartition("@")[2] if "@" in text else ""
        raise InvalidInputError(
            f"journal URL …{shown[:100]!r} cannot be read: use sqlite:////absolute/path/journal.db or "
            "postgresql://user@host/database"
        ) from None
    if url.get_backend_name() == "sqlite":
        _check_path(url)
    return url.set(drivername=driver)


def _check_path(url: URL) -> None:
    path = url.database or ""
    if path in {"", ":memory:"} or path.startswith("file:"):
        raise InvalidInputError(
            f"journal URL {url} names no file: a journal in memory would be lost; use sqlite:////path"
        )
    if not Path(path).is_absolute():
        raise InvalidInputError(
            f"journal URL {url}: a relative path is another file in every working directory; use an absolute "
            "one, with four slashes: sqlite:////path"
        )
