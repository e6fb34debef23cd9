"""Read Airflow's connections, and make their settings those of a task."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from lockgate.operators.connections.hook import DEFAULT, LockgateHook, check_type
from lockgate.operators.spark_process.environment import ALL, Part
from lockgate.storage_core.errors import MissingPartError
from lockgate.storage_core.settings import Settings, given_settings, load_settings, settings_in_effect

if TYPE_CHECKING:
    from types import ModuleType


@contextmanager
def connections(aws_conn_id: str | None = None, lockgate_conn_id: str | None = None) -> Iterator[None]:
    """Make `load_settings` return the settings of these connections, in this context until the block ends.

    Args:
        aws_conn_id: As for `LockgateOperator`.
        lockgate_conn_id: As for `LockgateOperator`.

    Raises:
        AirflowNotFoundException: A connection that was named does not exist.
        InvalidInputError: A connection has another type or does not fit.
    """
    settings = connected_settings(aws_conn_id or None, lockgate_conn_id or None)
    with settings_in_effect(settings):
        yield


def child_settings(needs: Collection[Part] = ALL) -> Settings | None:
    """Return the settings of the connections in effect for a child process; None if there are none.

    Credentials are read now, and masked in the task's log: a child process does not refresh them.

    Args:
        needs: What the child may connect to, as in `child_environment`; no child gets the broker's URL.
    """
    settings = given_settings()
    if settings is None:
        return None
    no_journal = {} if "journal" in needs else {"journal_url": None, "observer_urls": ()}
    settings = settings.model_copy(update={"broker_url": None, **no_journal})
    if settings.s3_credentials is None:
        return settings
    if "s3" not in needs:
        return settings.with_s3_credentials(None)
    from lockgate.storage_core.stores.s3.credentials import FixedCredentials  # noqa: PLC0415 - boto3

    fixed = FixedCredentials.of(settings)
    if fixed is None:
        return settings
    for secret in filter(None, (fixed.secret_key, fixed.token)):
        mask_secret(secret)
    return settings.with_s3_credentials(fixed)


def connected_settings(aws_conn_id: str | None, lockgate_conn_id: str | None) -> Settings | None:
    """Return the settings of connections; None if there are none; see `connections`."""
    hook, urls = LockgateHook(lockgate_conn_id or DEFAULT), {}
    try:
        urls = hook.urls()
        aws_conn_id = aws_conn_id or hook.aws_conn_id
    except AirflowNotFoundException:
        if lockgate_conn_id is not None:
            raise _not_found("lockgate_conn_id", lockgate_conn_id) from None
    if not urls and aws_conn_id is None:
        return None
    settings = load_settings().model_copy(update=urls)
    return settings if aws_conn_id is None else _with_aws(settings, aws_conn_id)


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
        from airflow.providers.amazon.aws.hooks import base_aws  # noqa: PLC0415 - only where it is used
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
