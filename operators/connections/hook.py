"""LockgateHook: the connection type `lockgate`, its settings and its test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from lockgate.storage_core.errors import InvalidInputError, LockgateError

if TYPE_CHECKING:
    from airflow.sdk import Connection

DEFAULT: Final = "lockgate_default"
URLS: Final = ("journal_url", "broker_url", "blob_server_url")
"""Fields of the connection, and the settings with the same names."""


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
        return _urls(self.connection)

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


def _urls(connection: Connection) -> dict[str, str]:
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


def _journal(url: str) -> str:
    from lockgate.storage_core.journal.status import check_journal  # noqa: PLC0415 - SQLAlchemy

    return check_journal(url)


def _broker(url: str) -> str:
    from lockgate.workers.broker.broker_keys import check_broker  # noqa: PLC0415 - imports Celery

    return check_broker(url)


def _blob_server(url: str) -> str:
    from lockgate.storage_core.blobs.server_or_client import open_client  # noqa: PLC0415 - slow
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    changes = {"blob_server_url": url, "blob_timeout_s": 5.0}
    with open_client(load_settings().model_copy(update=changes)) as client:
        client.jobs()  # a read that needs a valid token
        return client.url


_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    "journal_url": _journal,
    "broker_url": _broker,
    "blob_server_url": _blob_server,
}
