"""SQLAlchemy's engine for SQLite, configured so that acknowledged writes are durable."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError

from lockgate.storage_core.errors import JournalUnavailableError, StateLostError

WAL_BYTES: Final = 4 * 2**20
"""Size to which SQLite truncates its write-ahead log after a checkpoint."""


def sqlite_engine(url: URL, busy_s: float) -> Engine:
    """Return an engine for an SQLite file; create its directory if it is missing.

    Raises:
        OSError: The directory cannot be created.
    """
    path = Path(url.database or "")
    log_path = path.with_name(path.name + "-wal")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = create_engine(
        url, hide_parameters=True, connect_args={"timeout": busy_s, "check_same_thread": False}
    )

    opened, log_is_lost = threading.Event(), threading.Event()

    def refuse_lost_log() -> None:
        if log_is_lost.is_set():
            raise StateLostError(
                f"journal {path}: its write-ahead log {log_path.name} was removed or replaced while this "
                "process had it open; nothing was changed; end all processes that use the journal, put its "
                "files right, and start them again"
            )

    @event.listens_for(engine, "do_connect")
    def _refuse_lost(dialect: Any, record: Any, args: Any, options: Any) -> None:  # noqa: ARG001
        refuse_lost_log()  # a new connection would mix the new log with this process's index of the old one
        if opened.is_set() and file_at(path) is None:  # SQLite would create an empty one
            raise StateLostError(
                f"journal {path}: the file was removed while this process had it open; nothing was changed; "
                "put it back, or restore the journal: `lockgate journal restore`"
            )

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # transactions begin in `_begin` below
        _write_ahead(connection, path, busy_s)
        for pragma in ("synchronous=FULL", "foreign_keys=ON", f"journal_size_limit={WAL_BYTES}"):
            connection.execute(f"PRAGMA {pragma}").close()
        record.info["file"], record.info["log"] = file_at(path), None
        opened.set()

    @event.listens_for(engine, "checkout")
    def _checkout(connection: sqlite3.Connection, record: Any, proxy: Any) -> None:  # noqa: ARG001
        if record.info["file"] != file_at(path):  # the file was deleted or replaced
            raise DisconnectionError
        if record.info["log"] not in {None, file_at(log_path)}:
            log_is_lost.set()
        refuse_lost_log()

    @event.listens_for(engine, "checkin")
    def _checkin(connection: sqlite3.Connection | None, record: Any) -> None:  # noqa: ARG001
        # Not earlier: until its first read, a connection may not have opened the log, and another process
        # that ends removes it.
        record.info["log"] = record.info.get("log") or file_at(log_path)

    @event.listens_for(engine, "close")
    def _close(connection: sqlite3.Connection, record: Any) -> None:
        if record.info.get("log") not in {None, file_at(log_path)}:
            # The last connection to close writes the log into the file, even a log that was removed when
            # another file was put in its place. An interrupt makes SQLite leave that out.
            connection.interrupt()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("lockgate_begin", "BEGIN"))

    return engine


def _write_ahead(connection: sqlite3.Connection, path: Path, busy_s: float) -> None:
    """Enable the write-ahead log; retry, because SQLite does not wait if two connections do so at once."""
    gives_up_s = time.monotonic() + busy_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if "is locked" not in str(error) or time.monotonic() >= gives_up_s:
                raise
        time.sleep(random.uniform(0.005, 0.1))  # noqa: S311 - so that they do not meet again
    if mode != "wal":
        raise JournalUnavailableError(
            f"journal {path}: its file system cannot keep a write-ahead log; nothing was applied; put it on "
            "a local disk (LOCKGATE_HOME), or use PostgreSQL"
        )


def file_at(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
