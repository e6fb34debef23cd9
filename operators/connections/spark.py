"""Read where Spark runs from Airflow's connections of the types `spark` and `spark_connect`.

The connections are those of Airflow's Spark provider, which need not be installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from airflow.sdk import BaseHook

from lockgate.operators.connections.hook import check_type
from lockgate.storage_core.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Connection

LOCAL: Final = "local[*]"
_SETTINGS: Final = {"queue": "spark.yarn.queue", "namespace": "spark.kubernetes.namespace"}


class SparkPlace(NamedTuple):
    """Where a session runs.

    Attributes:
        master: Spark master URL.
        config: Spark settings of the connection.
        remote: URL of a Spark Connect server, with its token; None: a session with `master`.
    """

    master: str
    config: Mapping[str, str]
    remote: str | None = None


def spark_place(master: str | None, spark_conn_id: str | None, spark_connect_id: str | None) -> SparkPlace:
    """Return where the session of a task runs.

    Args:
        master: Spark master URL; None: that of the connection, else all cores of this machine.
        spark_conn_id: Connection of type `spark`: host and port, and in `extra` the fields `conf`, `queue`,
            `namespace` and `deploy-mode`.
        spark_connect_id: Connection of type `spark_connect`.

    Raises:
        AirflowNotFoundException: There is no such connection.
        InvalidInputError: The arguments or a connection's fields contradict each other.
    """
    if spark_connect_id:
        if master or spark_conn_id:
            raise InvalidInputError(
                f"spark_connect_id={spark_connect_id!r} is given together with master or spark_conn_id; "
                "nothing was done; give one of them"
            )
        return SparkPlace("", {}, _remote(_connection(spark_connect_id, "spark_connect", "spark_connect_id")))
    if not spark_conn_id:
        return SparkPlace(master or LOCAL, {})
    connection = _connection(spark_conn_id, "spark", "spark_conn_id")
    return SparkPlace(master or _master(connection), _config(connection))


def _connection(conn_id: str, conn_type: str, argument: str) -> Connection:
    connection: Connection = BaseHook.get_connection(conn_id)
    check_type(connection, conn_type, argument)
    return connection


def _master(connection: Connection) -> str:
    host = connection.host or LOCAL
    if connection.port is None:
        return host
    return f"{host}:{connection.port}" if "://" in host else f"spark://{host}:{connection.port}"


def _config(connection: Connection) -> dict[str, str]:
    extra: dict[str, Any] = connection.extra_dejson
    mode = extra.get("deploy-mode") or extra.get("deploy_mode") or "client"
    if mode != "client":
        raise InvalidInputError(
            f"connection {connection.conn_id!r}: deploy-mode is {mode!r}; nothing was done; the driver runs "
            "in a process of the task and ends with it, so only `client` is possible"
        )
    given = extra.get("conf") or {}
    conf = json.loads(given) if isinstance(given, str) else given
    if not isinstance(conf, dict):
        raise InvalidInputError(
            f"connection {connection.conn_id!r}: conf is no object; nothing was done; write Spark's settings "
            'as {"spark.executor.memory": "4g"}'
        )
    places = {setting: str(extra[name]) for name, setting in _SETTINGS.items() if extra.get(name)}
    return {**places, **{str(name): _text(value) for name, value in conf.items()}}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _remote(connection: Connection) -> str:
    extra: dict[str, Any] = connection.extra_dejson
    host = (connection.host or "localhost").removeprefix("sc://").rstrip("/")
    parameters = {
        "user_id": connection.login,
        "token": connection.password,
        "use_ssl": "true" if str(extra.get("use_ssl", "")).lower() == "true" else None,
    }
    given = "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
    return f"sc://{host}:{connection.port or 15002}/{given}"
