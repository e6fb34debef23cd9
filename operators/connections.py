"""Airflow's connections: their settings in a task, and the connection type `lockgate`.

Connections are read in the task, when it runs. Where Spark runs is read from the types `spark` and
`spark_connect` of Airflow's Spark provider, which need not be installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret
from msgspec import structs

from lockgate.operators.spark_process.process import ALL, Part
from lockgate.storage_core.errors import InvalidInputError, LockgateError, MissingPartError
from lockgate.storage_core.settings import Settings, given_settings, load_settings, settings_in_effect

if TYPE_CHECKING:
    from types import ModuleType

    from airflow.sdk import Connection

DEFAULT: Final = "lockgate_default"
URLS: Final = ("journal_url", "broker_url", "blob_server_url")
"""Fields of the connection, and the settings with the same names."""
LOCAL: Final = "local[*]"
_SETTINGS: Final = {"queue": "spark.yarn.queue", "namespace": "spark.kubernetes.namespace"}


class LockgateHook(BaseHook):
    """Reads a connection of type `lockgate`. Its form is in `lockgate.provider`.

    Args:
        lockgate_conn_id: Name of the connection.
    """

    conn_name_attr = "lockgate_conn_id"
    default_conn_name = DEFAULT
    conn_type = "lockgate"
    hook_name = "Lockgate"

    def __init__(self, lockgate_conn_id: str = DEFAULT) -> None:
        super().__init__()
        self.lockgate_conn_id = lockgate_conn_id

    @cached_property
    def connection(self) -> Connection:
        """The connection.

        Raises:
            AirflowNotFoundException: There is no such connection.
            InvalidInputError: It has another type.
        """
        connection: Connection = self.get_connection(self.lockgate_conn_id)
        check_type(connection, self.conn_type, self.conn_name_attr)
        return connection

    @property
    def aws_conn_id(self) -> str | None:
        """The AWS connection for S3 that the connection names."""
        return self.connection.extra_dejson.get("aws_conn_id") or None

    def urls(self) -> dict[str, str]:
        """Return the URLs that the connection has, with their passwords, by the name of the setting.

        Raises:
            AirflowNotFoundException: There is no such connection.
            InvalidInputError: It has another type, or a password and no URL for it.
        """
        return _read_urls(self.connection)

    def test_connection(self) -> tuple[bool, str]:
        """Connect to all that the connection names, and change nothing; for the button of Airflow's form."""
        try:
            urls = self.urls()
            reached = [check(urls[name]) for name, check in _CHECKS.items() if name in urls]
        except LockgateError as error:
            return False, str(error)
        if not reached:
            return False, "the connection has no URL: fill in at least one of journal, broker and blob server"
        return True, f"reached {', '.join(reached)}"


def check_type(connection: Connection, expected: str, argument: str) -> None:
    """Refuse a connection of another type.

    Raises:
        InvalidInputError: It has one; the message names the argument.
    """
    if connection.conn_type != expected:
        raise InvalidInputError(
            f"connection {connection.conn_id!r} has the type {connection.conn_type!r}; nothing was done; "
            f"name one of type {expected} in {argument}"
        )


def _read_urls(connection: Connection) -> dict[str, str]:
    extra = connection.extra_dejson
    passwords = {"journal_url": connection.password, "broker_url": extra.get("broker_password")}
    urls = {}
    for name in URLS:
        url, password = str(extra.get(name) or "").strip(), passwords.get(name)
        if url:
            urls[name] = with_password(url, password) if password else url
        elif password:
            raise InvalidInputError(
                f"connection {connection.conn_id!r} has a password for {name}, and no {name}; nothing was "
                "done; fill it in"
            )
    for url in urls.values():
        # Airflow masks the values of fields that are named like secrets only.
        if secret := urlsplit(url).password:
            mask_secret(secret)
            mask_secret(url)
    return urls


def with_password(url: str, password: str) -> str:
    """Return the URL with this password, percent-encoded, in place of its own."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}:{quote(password, safe='')}@{host}"
    return parts._replace(netloc=netloc).geturl()


def _check_journal(url: str) -> str:
    from lockgate.storage_core.journal.status import check_journal

    return check_journal(url)


def _check_broker(url: str) -> str:
    from lockgate.workers.broker.broker_keys import check_broker

    return check_broker(url)


def _check_blob_server(url: str) -> str:
    from lockgate.storage_core.blobs.open_blobs import open_client

    changes = {"blob_server_url": url, "blob_timeout_s": 5.0}
    with open_client(load_settings(**changes)) as client:
        client.jobs()  # a read that needs a valid token
        return client.url


_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    "journal_url": _check_journal,
    "broker_url": _check_broker,
    "blob_server_url": _check_blob_server,
}


@contextmanager
def lockgate_connection(
    lockgate_conn_id: str | None = None, *, aws_conn_id: str | None = None
) -> Iterator[None]:
    """Give all calls of Lockgate in the block the settings of connections; for a task that is no operator.

    `load_settings` returns these settings in this context until the block ends. Then the event logs of jobs
    are closed, because Airflow ends a task's process without Python's exit handlers.

    Args:
        lockgate_conn_id: As for the operators.
        aws_conn_id: As for the operators.

    Raises:
        AirflowNotFoundException: A connection that was named does not exist.
        InvalidInputError: A connection has another type or does not fit.
    """
    from lockgate.storage_core.commit.job_events import end_logs

    settings = connected_settings(aws_conn_id or None, lockgate_conn_id or None)
    with settings_in_effect(settings):
        try:
            yield
        finally:
            end_logs()


def child_settings(needs: Collection[Part] = ALL) -> Settings | None:
    """Return the settings of the connections in effect for a child process; None if there are none.

    Credentials are read now, and masked in the task's log: a child process does not refresh them.

    Args:
        needs: What the child may connect to, as in `child_environment`; no child gets the broker's URL.
    """
    settings = given_settings()
    if settings is None:
        return None
    if "journal" not in needs:
        settings = structs.replace(settings, journal_url=None, observer_urls=())
    settings = structs.replace(settings, broker_url=None)
    if settings.s3_credentials is None:
        return settings
    if "s3" not in needs:
        return settings.with_s3_credentials(None)
    from lockgate.storage_core.stores.s3.credentials import FixedCredentials

    fixed = FixedCredentials.of(settings)
    if fixed is None:
        return settings
    for secret in filter(None, (fixed.secret_key, fixed.token)):
        mask_secret(secret)
    return settings.with_s3_credentials(fixed)


def connected_settings(aws_conn_id: str | None, lockgate_conn_id: str | None) -> Settings | None:
    """Return the settings of connections; None if there are none; see `lockgate_connection`."""
    hook, urls = LockgateHook(lockgate_conn_id or DEFAULT), {}
    try:
        urls = hook.urls()
        aws_conn_id = aws_conn_id or hook.aws_conn_id
    except AirflowNotFoundException:
        if lockgate_conn_id is not None:
            raise _not_found("lockgate_conn_id", lockgate_conn_id) from None
    if not urls and aws_conn_id is None:
        return None
    settings = load_settings(**urls)
    return settings if aws_conn_id is None else _with_aws(settings, aws_conn_id)


def connections_as_text() -> tuple[str, ...]:
    """Return what the default connections hold, with their secrets, to see that one has changed.

    Raises:
        InvalidInputError: `lockgate_default` has another type.
    """
    hook = LockgateHook()
    try:
        found = (hook.connection.get_uri(),)
        return (*found, BaseHook.get_connection(hook.aws_conn_id).get_uri()) if hook.aws_conn_id else found
    except AirflowNotFoundException:  # `connected_settings` says so if one was named
        return ()


def _with_aws(settings: Settings, conn_id: str) -> Settings:
    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:  # the hook would go on without it, as another user
        raise _not_found("aws_conn_id", conn_id) from None
    check_type(found, "aws", "aws_conn_id")
    hook: Any = _amazon(conn_id).AwsGenericHook(aws_conn_id=conn_id, client_type="s3")
    session = hook.get_session()
    given = {
        "s3_endpoint_url": hook.conn_config.get_service_endpoint_url("s3"),
        "s3_region": hook.region_name or session.region_name,
    }
    changes = {name: value for name, value in given.items() if value}
    return settings.with_s3_credentials(session.get_credentials, **changes)


def _amazon(conn_id: str) -> ModuleType:
    try:
        from airflow.providers.amazon.aws.hooks import base_aws
    except ImportError as error:
        raise MissingPartError(
            f"aws_conn_id={conn_id!r} needs Airflow's Amazon provider; nothing was done; "
            f"pip install apache-airflow-providers-amazon ({error})"
        ) from error
    return base_aws


def _not_found(argument: str, conn_id: str) -> AirflowNotFoundException:
    return AirflowNotFoundException(
        f"{argument}={conn_id!r}: there is no such connection, or it cannot be read now; nothing was done; "
        "create it in Airflow's Admin, Connections, or correct the name"
    )


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
        return SparkPlace(
            "", {}, _spark_remote(_typed(spark_connect_id, "spark_connect", "spark_connect_id"))
        )
    if not spark_conn_id:
        return SparkPlace(master or LOCAL, {})
    connection = _typed(spark_conn_id, "spark", "spark_conn_id")
    return SparkPlace(master or _spark_master(connection), _spark_config(connection))


def _typed(conn_id: str, conn_type: str, argument: str) -> Connection:
    connection: Connection = BaseHook.get_connection(conn_id)
    check_type(connection, conn_type, argument)
    return connection


def _spark_master(connection: Connection) -> str:
    host = connection.host or LOCAL
    if connection.port is None:
        return host
    return f"{host}:{connection.port}" if "://" in host else f"spark://{host}:{connection.port}"


def _spark_config(connection: Connection) -> dict[str, str]:
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


def _spark_remote(connection: Connection) -> str:
    extra: dict[str, Any] = connection.extra_dejson
    host = (connection.host or "localhost").removeprefix("sc://").rstrip("/")
    parameters = {
        "user_id": connection.login,
        "token": connection.password,
        "use_ssl": "true" if str(extra.get("use_ssl", "")).lower() == "true" else None,
    }
    given = "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
    return f"sc://{host}:{connection.port or 15002}/{given}"
