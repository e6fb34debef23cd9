"""SQLAlchemy's engine for PostgreSQL, configured so that acknowledged writes are durable.

Its driver is a third of what a journal imports: processes whose journal is in SQLite do not import this
module.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError

from lockgate.storage_core.errors import InvalidInputError, JournalUnavailableError
from lockgate.storage_core.journal.database.pipeline import SYNCHRONOUS_COMMIT

_IDLE_IN_TRANSACTION_S: Final = 60
"""Longest time for which a process that was stopped in a transaction can block the others."""

_LOST_S: Final = 30
"""Timeout of a server that does not acknowledge packets."""

RESTED_S: Final = 1.0
"""A connection that was idle for this long is pinged before use."""

_MAY_LOSE: Final = "lockgate.may_lose_entries"
_SERVER: Final = (
    f"pg_is_in_recovery(), current_setting('fsync'), coalesce(current_setting('{_MAY_LOSE}', true), '')"
)
"""Whether it is a standby, whether it syncs, and whether its settings permit lost entries."""

_OPTION: Final = re.compile(r"(?:-c\s*|--)([\w.]+)=((?:\\.|[^\s\\])*)\s*", re.ASCII)
"""One parameter in the `options` of a URL."""


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
                    raise psycopg.errors.ConnectionFailure(
                        f"the server has sent nothing for {self.silence_s:g} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def postgresql_engine(url: URL, busy_s: float, *, is_primary: bool, silence_s: float) -> Engine:
    """Return an engine for a PostgreSQL server.

    Args:
        url: URL of the database; its parameters take precedence.
        busy_s: Timeout for connections and locks.
        is_primary: Refuse a standby, and a server that loses acknowledged entries; of several hosts, use the
            primary.
        silence_s: Timeout of a server that sends nothing during a call.

    Raises:
        InvalidInputError: The `options` of the URL are not `-c name=value`.
    """
    parameters = {
        "lock_timeout": f"{busy_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{_IDLE_IN_TRANSACTION_S * 1000}",
        "plan_cache_mode": "force_custom_plan",  # a plan cached for a small table keeps reading all of it
        **_url_parameters(url),
    }
    chosen: dict[str, Any] = {
        "connect_timeout": max(2, int(busy_s)),
        "application_name": "lockgate",
        "keepalives_idle": _LOST_S // 2,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": _LOST_S * 1000,
    }
    if is_primary and _has_several_addresses(url):
        chosen["target_session_attrs"] = "primary"
    engine = create_engine(
        url,
        pool_size=4,
        max_overflow=16,
        hide_parameters=True,
        connect_args={
            "options": "",  # poolers refuse or drop them: they are set below
            "client_encoding": "utf8",
            **{name: value for name, value in chosen.items() if name not in url.query},
        },
    )

    @event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, record: Any, args: Any, options: Any) -> TimeoutConnection:  # noqa: ARG001
        connection = TimeoutConnection.connect(*args, **options)
        connection.silence_s = silence_s
        return connection

    @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy, which needs UTF-8
    def _refuse_encoding(connection: psycopg.Connection, record: Any) -> None:  # noqa: ARG001
        _check_encoding(connection)

    @event.listens_for(engine, "connect")
    def _set_up(connection: psycopg.Connection, record: Any) -> None:
        record.info["is_pooled"] = _set_parameters(connection, parameters, is_primary=is_primary)
        if record.info["is_pooled"]:
            connection.prepare_threshold = None  # another session may have one of that name

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.info["is_pooled"]:
            local = ", ".join(["set_config(%s, %s, true)"] * len(parameters))
            connection.exec_driver_sql(
                f"SELECT {local}, {SYNCHRONOUS_COMMIT}", tuple(chain(*parameters.items()))
            )

    @event.listens_for(engine, "checkin")
    def _checkin(connection: psycopg.Connection, record: Any) -> None:  # noqa: ARG001
        record.info["rests_since_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _checkout(connection: TimeoutConnection, record: Any, proxy: Any) -> None:  # noqa: ARG001
        rested_s = time.monotonic() - record.info.get("rests_since_s", float("inf"))
        connection.silence_s = min(busy_s, silence_s)  # a ping takes no time
        if _has_input(connection) or (rested_s >= RESTED_S and not _is_alive(engine, connection)):
            raise DisconnectionError
        connection.silence_s = silence_s

    return engine


def _has_several_addresses(url: URL) -> bool:
    """Return whether a URL names several servers, also by one name, all of whose addresses psycopg tries."""
    hosts = ",".join((url.host or "", *_texts(url, "host"))).strip(",")
    if not hosts or "," in hosts or hosts.startswith("/"):
        return "," in hosts
    with suppress(OSError, UnicodeError):  # psycopg says that there is no such name
        return len(socket.getaddrinfo(url.host or hosts.split(":")[0], None, type=socket.SOCK_STREAM)) > 1
    return False


def _texts(url: URL, name: str) -> tuple[str, ...]:
    """Return the values of a parameter in the query of a URL."""
    found = url.query.get(name, ())
    return (found,) if isinstance(found, str) else found


def _url_parameters(url: URL) -> dict[str, str]:
    """Return the server's parameters in the `options` of a URL."""
    parameters, rest = dict[str, str](), " ".join(_texts(url, "options")).strip()
    while rest:
        option = _OPTION.match(rest)
        if option is None:
            raise InvalidInputError(
                f"journal database {url.database}: the options {rest!r} of its URL are not understood; "
                "nothing was applied; give parameters as options=-c%20name%3Dvalue (LOCKGATE_JOURNAL_URL)"
            )
        parameters[option[1]] = re.sub(r"\\(.)", r"\1", option[2])
        rest = rest[option.end() :]
    return parameters


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


def _set_parameters(
    connection: psycopg.Connection, parameters: Mapping[str, str], *, is_primary: bool
) -> bool:
    """Set the session's parameters, and return whether a pooler, such as pgbouncer, is in between.

    A pooler gives each transaction another session, or drops what a client sends at its start. Nothing is set
    there: each transaction sets the parameters for itself.

    Raises:
        JournalUnavailableError: A primary is required, and the server is a standby.
        InvalidInputError: A primary is required, and the server syncs nothing.
    """
    pid = connection.info.backend_pid  # a pooler makes its own
    setting = ", ".join(["set_config(%s, %s, pg_backend_pid() <> %s)"] * len(parameters))
    values = chain.from_iterable((name, value, pid) for name, value in parameters.items())
    connection.autocommit = True  # one round trip, and no rollback that would reset the parameters
    row = connection.execute(
        f"SELECT pg_backend_pid(), {_SERVER}, {SYNCHRONOUS_COMMIT}, {setting}".encode(), tuple(values)
    ).fetchone()
    connection.autocommit = False
    server_pid, is_standby, fsync, may_lose, *_ = row or (pid, False, "", "")
    if is_primary and is_standby:
        raise JournalUnavailableError(
            f"journal database {connection.info.dbname}: its server is a standby; nothing was applied; name "
            "the primary in LOCKGATE_JOURNAL_URL, a standby in LOCKGATE_OBSERVER_URLS"
        )
    if is_primary and fsync == "off" and "on" not in {may_lose, parameters.get(_MAY_LOSE)}:
        raise InvalidInputError(
            f"journal database {connection.info.dbname}: fsync is off on its server, so a crash of its "
            "machine loses acknowledged entries, and their stamps are issued again; nothing was applied; set "
            "fsync = on in postgresql.conf and reload the server; for a database that may lose everything, "
            "as in tests, set lockgate.may_lose_entries = on there, or add "
            "?options=-c%20lockgate.may_lose_entries%3Don to LOCKGATE_JOURNAL_URL"
        )
    return bool(server_pid != pid)
