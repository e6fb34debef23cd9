"""SQLAlchemy's engines for the two kinds of database, set so that what was acknowledged stays."""

from __future__ import annotations

import select
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from lockgate.storage_core.errors import InvalidInputError, JournalUnavailableError
from lockgate.storage_core.journal.database.read_timeout import ImpatientConnection

_IDLE_IN_TRANSACTION_S: Final = 60
"""A process that was stopped amid a transaction holds up all others for so long at most."""

_LOST_S: Final = 30
"""A server that does not answer on the network for so long is given up."""

RESTED_S: Final = 1.0
"""A connection that was at rest for so long is asked whether its server is still there."""

WAL_BYTES: Final = 4 * 2**20
"""SQLite keeps so much of its write-ahead log once that is checkpointed, not all that it ever needed."""


def sqlite_engine(url: URL, busy_s: float, *, is_copy: bool) -> Engine:
    """Return an engine over an SQLite file, whose directory is made if it is missing.

    Args:
        url: Of the file.
        busy_s: How long a locked file is waited for.
        is_copy: A loss of power may take its newest transactions: they are copied again.

    Raises:
        OSError: The directory cannot be made.
    """
    path = Path(url.database or "")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = create_engine(
        url, hide_parameters=True, connect_args={"timeout": busy_s, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # transactions begin where `begin` below says so
        _write_ahead(connection, path, busy_s)
        for pragma in (
            f"synchronous={'NORMAL' if is_copy else 'FULL'}",
            "foreign_keys=ON",
            f"journal_size_limit={WAL_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}").close()
        record.info["file"] = file_at(path)

    @event.listens_for(engine, "checkout")
    def _checkout(connection: sqlite3.Connection, record: Any, proxy: Any) -> None:  # noqa: ARG001
        if record.info["file"] != file_at(path):  # removed or replaced: it would be written and never read
            raise DisconnectionError

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("lockgate_begin", "BEGIN"))

    return engine


def postgresql_engine(url: URL, busy_s: float, *, is_primary: bool, silence_s: float | None = None) -> Engine:
    """Return an engine over a PostgreSQL server.

    Args:
        url: Of the database. What it sets itself stays as it says.
        busy_s: How long a connection, or a lock, is waited for.
        is_primary: Refuse a server that is a standby; of several hosts, find the one that is none.
        silence_s: A server that says nothing for so long, while it is asked, is given up; None: never.
    """
    options = (
        f"-c lock_timeout={int(busy_s * 1000)}",
        f"-c idle_in_transaction_session_timeout={_IDLE_IN_TRANSACTION_S * 1000}",
        "-c plan_cache_mode=force_custom_plan",  # a plan made while a table was small reads it whole for ever
        str(url.query.get("options", "")),
    )
    chosen: dict[str, Any] = {
        "connect_timeout": max(2, int(busy_s)),
        "application_name": "lockgate",
        "keepalives_idle": _LOST_S // 2,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": _LOST_S * 1000,
    }
    if is_primary:
        chosen["target_session_attrs"] = "primary"
    engine = create_engine(
        url,
        pool_size=4,
        max_overflow=16,
        hide_parameters=True,
        connect_args={
            "options": " ".join(options).strip(),
            "client_encoding": "utf8",
            **{name: value for name, value in chosen.items() if name not in url.query},
        },
    )

    @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy, which cannot read any other
    def _refuse_encoding(connection: psycopg.Connection, record: Any) -> None:  # noqa: ARG001
        _check_encoding(connection)

    @event.listens_for(engine, "checkin")
    def _checkin(connection: psycopg.Connection, record: Any) -> None:  # noqa: ARG001
        record.info["rests_since_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _checkout(connection: psycopg.Connection, record: Any, proxy: Any) -> None:  # noqa: ARG001
        rested_s = time.monotonic() - record.info.get("rests_since_s", float("inf"))
        if _was_told(connection) or (rested_s >= RESTED_S and not _is_answered(engine, connection)):
            raise DisconnectionError

    if silence_s is not None:

        @event.listens_for(engine, "do_connect")
        def _connect(dialect: Any, record: Any, args: Any, options: Any) -> ImpatientConnection:  # noqa: ARG001
            connection = ImpatientConnection.connect(*args, **options)
            connection.silence_s = silence_s
            return connection

    return engine


def _was_told(connection: psycopg.Connection) -> bool:
    """Tell whether the server has said something to a connection at rest: mostly that it has ended it.

    It costs no round trip.
    """
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _is_answered(engine: Engine, connection: Any) -> bool:
    """Tell whether the server answers to a connection at rest: it may have left without a word.

    After a failover all connections at rest are such, and more of them than a write is tried times.
    """
    try:
        return engine.dialect.do_ping(connection)
    except psycopg.Error:
        return False


def _check_encoding(connection: psycopg.Connection) -> None:
    """Let only a database that can keep every text be a journal's.

    Raises:
        InvalidInputError: It keeps another encoding than UTF-8.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise InvalidInputError(
            f"journal database {connection.info.dbname}: it keeps text as {encoding}, which has not every "
            "character; nothing was applied; make one by `createdb -E UTF8 -T template0 NAME`, and name that"
        )


def _write_ahead(connection: sqlite3.Connection, path: Path, busy_s: float) -> None:
    """Turn on the write-ahead log; two that do so at once are not waited for by SQLite itself."""
    for attempt in Retrying(
        retry=retry_if_exception(lambda error: "is locked" in str(error)),
        stop=stop_after_delay(busy_s),
        wait=wait_random_exponential(multiplier=0.005, max=0.1),
        reraise=True,
    ):
        with attempt:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise JournalUnavailableError(
            f"journal {path}: its file system cannot keep a write-ahead log; nothing was applied; put it on "
            "a local disk (LOCKGATE_HOME), or use PostgreSQL"
        )


def file_at(path: Path) -> tuple[int, int] | None:
    """Tell a file from another that takes its place; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
