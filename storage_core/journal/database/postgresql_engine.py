"""SQLAlchemy's engine for PostgreSQL, configured so that acknowledged writes are durable.

Its driver is a third of what a journal imports: processes whose journal is in SQLite do not import this
module.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from typing import Any, Final

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.database.pipeline import SYNCHRONOUS_COMMIT

_IDLE_IN_TRANSACTION_S: Final = 60
"""Longest time for which a process that was stopped in a transaction can block the others."""

_LOST_S: Final = 30
"""Timeout of a server that does not acknowledge packets."""

RESTED_S: Final = 1.0
"""A connection that was idle for this long is pinged before use."""

_FSYNC: Final = (
    "current_setting('fsync'), coalesce(current_setting('lockgate.may_lose_entries', true), '') = 'on'"
)
"""Whether the server syncs, and whether its settings permit lost entries."""


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection that closes itself when the server sends nothing during a call.

    A server process that is stopped or hangs keeps its connections, because the kernel acknowledges the
    packets. No setting of the server or the network helps, so the client measures the time.

    Attributes:
        silence_s: Timeout; unlimited until it is set.
    """

    silence_s = float("inf")

    def wait(self, gen: PQGen[Any], *args: Any, **options: Any) -> Any:
        """Wait for the server with the timeout.

        Raises:
            OperationalError: The server sent nothing for too long; the connection is closed.
        """
        return super().wait(self._with_timeout(gen), *args, **options)

    def _with_timeout(self, gen: PQGen[Any]) -> Generator[Any, Any, Any]:
        received_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted  # every tenth of a second, empty while nothing has arrived
                now_s = time.monotonic()
                if ready:
                    received_s = now_s
                elif now_s - received_s > self.silence_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has sent nothing for {self.silence_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def postgresql_engine(url: URL, busy_s: float, *, is_primary: bool, silence_s: float | None = None) -> Engine:
    """Return an engine for a PostgreSQL server.

    Args:
        url: URL of the database; its parameters take precedence.
        busy_s: Timeout for connections and locks.
        is_primary: Refuse a standby, and a server that loses acknowledged entries; of several hosts, use the
            primary.
        silence_s: Timeout of a server that sends nothing during a call; None: no timeout.
    """
    options = (
        f"-c lock_timeout={int(busy_s * 1000)}",
        f"-c idle_in_transaction_session_timeout={_IDLE_IN_TRANSACTION_S * 1000}",
        "-c plan_cache_mode=force_custom_plan",  # a plan cached for a small table keeps reading all of it
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

    @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy, which needs UTF-8
    def _refuse_encoding(connection: psycopg.Connection, record: Any) -> None:  # noqa: ARG001
        _check_encoding(connection)

    if is_primary:

        @event.listens_for(engine, "connect")
        def _refuse_loss(connection: psycopg.Connection, record: Any) -> None:  # noqa: ARG001
            _check_durability(connection)

    @event.listens_for(engine, "checkin")
    def _checkin(connection: psycopg.Connection, record: Any) -> None:  # noqa: ARG001
        record.info["rests_since_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _checkout(connection: psycopg.Connection, record: Any, proxy: Any) -> None:  # noqa: ARG001
        rested_s = time.monotonic() - record.info.get("rests_since_s", float("inf"))
        if _has_input(connection) or (rested_s >= RESTED_S and not _is_alive(engine, connection)):
            raise DisconnectionError

    if silence_s is not None:

        @event.listens_for(engine, "do_connect")
        def _connect(dialect: Any, record: Any, args: Any, options: Any) -> TimeoutConnection:  # noqa: ARG001
            connection = TimeoutConnection.connect(*args, **options)
            connection.silence_s = silence_s
            return connection

    return engine


def _has_input(connection: psycopg.Connection) -> bool:
    """Return whether an idle connection has received data: mostly that the server has closed it."""
    # Unlike a ping, this needs no round trip.
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _is_alive(engine: Engine, connection: Any) -> bool:
    """Return whether the server still answers on an idle connection."""
    # After a failover all idle connections may be dead, and there can be more of them than a write has tries.
    try:
        return engine.dialect.do_ping(connection)
    except psycopg.Error:
        return False


def _check_encoding(connection: psycopg.Connection) -> None:
    """Raise if the database cannot store every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise InvalidInputError(
            f"journal database {connection.info.dbname}: its encoding {encoding} lacks some characters; "
            "nothing was applied; create another one with `createdb -E UTF8 -T template0 NAME`, and name that"
        )


def _check_durability(connection: psycopg.Connection) -> None:
    """Turn `synchronous_commit` on for the session if it is off; raise if the server syncs nothing."""
    connection.autocommit = True  # one round trip, and no rollback that would reset the setting
    row = connection.execute(f"SELECT {_FSYNC}, {SYNCHRONOUS_COMMIT}").fetchone()
    connection.autocommit = False
    fsync, may_lose, _ = row or ("", False, "")
    if fsync == "off" and not may_lose:
        raise InvalidInputError(
            f"journal database {connection.info.dbname}: fsync is off on its server, so a crash of its "
            "machine loses acknowledged entries, and their stamps are issued again; nothing was applied; set "
            "fsync = on in postgresql.conf and reload the server; for a database that may lose everything, "
            "as in tests, set lockgate.may_lose_entries = on there, or add "
            "?options=-c%20lockgate.may_lose_entries%3Don to LOCKGATE_JOURNAL_URL"
        )
