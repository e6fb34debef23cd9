"""The database of a journal: SQLite or PostgreSQL, and the differences between them.

A write begins with a lock: `BEGIN IMMEDIATE` on SQLite, because a deferred transaction fails at once whatever
the timeout; READ COMMITTED and the head's row on PostgreSQL, because REPEATABLE READ would fail to serialise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Double, Engine, bindparam, func, literal, literal_column
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, TimeoutError  # noqa: A004 - of a pool
from sqlalchemy.sql.elements import ColumnElement

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import (
    FencedError,
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    OutcomeUnknownError,
    StateLostError,
)
from lockgate.storage_core.forks import FORKS, Forkable, leave_to_parent
from lockgate.storage_core.journal.database.driver_errors import (
    driver_message,
    is_refused_connection,
    lacks_table,
    refused_commit,
    to_lockgate_error,
)
from lockgate.storage_core.journal.database.sqlite_engine import sqlite_engine
from lockgate.storage_core.journal.database.writer_lock import WriterLock

BUSY_S: Final = 10.0
"""Timeout for locks and for connecting to PostgreSQL."""

SILENCE_S: Final = 60.0
"""Timeout of a PostgreSQL server that sends nothing during a call."""

_PAUSE_S: Final = 0.05

NOW: Final = "now_s"
"""Name of the parameter in `now_parameter`."""

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
    """One database. A forked process opens new connections.

    Args:
        url: Result of `parse_url`.
        clock: Replaces the database's clock, for tests.
        busy_s: Timeout for locks and for connecting to PostgreSQL.
        is_primary: Refuse a PostgreSQL server that is a standby.
        silence_s: Timeout of a PostgreSQL server that sends nothing during a call; by default `SILENCE_S`.

    Attributes:
        had_tables: Whether this process has found a journal's tables there: then their absence is a loss.

    Raises:
        InvalidInputError: The path is a directory.
        JournalUnavailableError: The file's directory cannot be created.
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
        self._busy_s = busy_s
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._clock = clock or (SystemClock() if self.is_sqlite else None)
        if self.is_sqlite:
            self._engine = self._sqlite(busy_s)
        else:
            from lockgate.storage_core.journal.database.postgresql_engine import (  # noqa: PLC0415 - its driver
                postgresql_engine,
            )

            self._engine = postgresql_engine(
                url, busy_s, is_primary=is_primary, silence_s=silence_s or SILENCE_S
            )
        self._writers = WriterLock(Path(url.database or ""), self.name) if self.is_sqlite else None
        self.had_tables = False
        FORKS.register(self)

    @property
    def name(self) -> str:
        """The URL without its password."""
        secret = [name for name in self.url.query if "password" in name]
        shown = self.url.difference_update_query(secret).set(drivername=self.url.get_backend_name())
        return shown.render_as_string(hide_password=True)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction; commit at the end of the block. Writers of an SQLite file take turns.

        Raises:
            NotAppliedError: Nothing was applied; mostly a `JournalUnavailableError` (`to_lockgate_error`).
            OutcomeUnknownError: The commit got no answer.
        """
        begin: dict[str, Any] = {"isolation_level": "READ COMMITTED"}
        if self.is_sqlite:
            begin = {"lockgate_begin": "BEGIN IMMEDIATE"}
        self._refuse_tainted()  # before it waits for the lock, which the parent may hold for ever
        with (
            self._writers.locked() if self._writers else nullcontext(),
            self._begun(begin, self._commit) as connection,
        ):
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Open a read-only transaction that reads one state.

        PostgreSQL ends it after a minute without a statement, unless `Reading.stay_open` was called.

        Raises:
            NotAppliedError: It cannot be read; mostly a `JournalUnavailableError` (`to_lockgate_error`).
        """
        begin: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        end = Connection.rollback
        if not self.is_sqlite:
            end = Connection.commit  # at a rollback the driver would drop its prepared statements
        with self._begun({} if self.is_sqlite else begin, end) as connection:
            yield connection

    def now(self) -> ColumnElement[float]:
        """Return the expression for the time of the database's clock, in seconds since the epoch."""
        return _SERVERS_NOW if self._clock is None else literal(self._clock.now_s(), Double)

    def injected_now_s(self) -> float | None:
        """Return the value for `now_parameter`: the time, or None if the server's clock is used."""
        return None if self._clock is None else self._clock.now_s()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def before_fork(self) -> None:
        """Close idle SQLite connections, which a child must not inherit."""
        if self.is_sqlite:
            self._engine.dispose()

    def after_fork_in_child(self) -> None:
        """Drop the parent's connections without closing them."""
        leave_to_parent(self._engine.pool)
        self._engine.dispose(close=False)

    @contextmanager
    def _begun(self, begin: Mapping[str, Any], end: Callable[[Connection], None]) -> Iterator[Connection]:
        """Open a transaction; call `end` after the block, and roll back if it is not reached."""
        self._refuse_tainted()
        process = os.getpid()
        with FORKS.sqlite_transaction() if self.is_sqlite else nullcontext():
            try:
                connection = self._connect()
                try:
                    connection.execution_options(**begin).begin()
                    yield connection
                    self._refuse_in_child(process)
                    end(connection)
                except (LockgateError, DBAPIError, GeneratorExit):
                    raise
                except BaseException:
                    if os.getpid() == process:
                        connection.invalidate()  # interrupted, perhaps between a question and its answer
                    raise
                finally:
                    if os.getpid() == process:
                        connection.close()
                    else:
                        leave_to_parent(connection)
            except (DBAPIError, TimeoutError, UnicodeDecodeError) as error:
                if self.had_tables and lacks_table(error):
                    raise StateLostError(
                        f"journal {self.name}: its tables are gone, the database was replaced under this "
                        "process; nothing was applied; put the right one back, or restore the journal: "
                        "`lockgate journal restore`"
                    ) from error
                raise to_lockgate_error(self.name, error) from error

    def _connect(self) -> Connection:
        """Take a connection from the pool; if the server accepts no more of them, wait until one is free."""
        gives_up_s = monotonic() + self._busy_s
        pool: Any = self._engine.pool
        while True:
            can_wait = not self.is_sqlite and pool.checkedout() > 0 and monotonic() < gives_up_s
            try:
                return self._engine.connect()
            except OperationalError as error:
                if not (can_wait and is_refused_connection(error)):
                    raise
            sleep(_PAUSE_S)

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except DBAPIError as error:
            if refused_commit(error):
                raise
            connection.invalidate()
            raise OutcomeUnknownError(
                f"journal {self.name}: the commit got no answer ({driver_message(error)}); it may have been "
                "applied; the same request id asks again without doing it twice"
            ) from error

    def _refuse_tainted(self) -> None:
        if self.is_sqlite and FORKS.is_tainted:
            raise JournalUnavailableError(
                f"journal {self.name}: this process was forked during a transaction of its parent, and "
                "cannot use SQLite; nothing was applied; fork earlier, spawn, or use PostgreSQL"
            )

    def _refuse_in_child(self, process: int) -> None:
        if os.getpid() != process:
            raise FencedError(
                f"journal {self.name}: this transaction belongs to process {process}, and this one is its "
                "fork; stop, and change nothing more"
            )

    def _sqlite(self, busy_s: float) -> Engine:
        try:
            if Path(self.url.database or "").is_dir():
                raise InvalidInputError(f"journal {self.name} is a directory: name a file in it")
            return sqlite_engine(self.url, busy_s)
        except OSError as error:
            raise to_lockgate_error(self.name, error) from error


def now_parameter(for_sqlite: bool) -> ColumnElement[float]:
    """Return a cached statement's expression for the time: the parameter `NOW`, or the server's clock."""
    injected = bindparam(NOW, type_=Double)
    return injected if for_sqlite else func.coalesce(injected, _SERVERS_NOW)


def timeline(for_sqlite: bool) -> ColumnElement[int]:
    """Return the expression for the server's timeline, which changes when a standby is promoted."""
    return literal_column("0") if for_sqlite else _SERVERS_TIMELINE


def parse_url(text: str) -> URL:
    """Parse a journal's URL.

    Args:
        text: `sqlite:////absolute/path` or `postgresql://user@host/name`.

    Raises:
        InvalidInputError: It is neither; the message contains no password.
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
