"""From settings to boto3 clients: one that repeats a call by itself, one that never does."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, EndpointConnectionError, ProfileNotFound

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.s3.errors import is_silence, scrubbed
from lockgate.storage_core.stores.s3.fast_path.endpoint import make_lean

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_CONNECT_TIMEOUT_S: Final = 10.0
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


class _Connection(NamedTuple):
    """What clients are made by, named as in the settings: those that differ in nothing else share clients."""

    s3_endpoint_url: str | None
    s3_region: str | None
    s3_profile: str | None
    s3_path_style: bool | None
    s3_timeout_s: float
    s3_max_attempts: int
    s3_lean: bool
    parallelism: int


class LostTries(threading.local):
    """Whether an earlier try of this thread's call got no definite answer, though a later one got one.

    A call that was repeated may have had its effect at its first try, whatever the last one says.
    """

    seen = False

    def note(
        self,
        caught_exception: Exception | None = None,
        response: tuple[Any, dict[str, Any]] | None = None,
        **_: Any,
    ) -> None:
        """Be told of a failed try by botocore, which asks all of its listeners whether to repeat."""
        if response is not None:
            status = response[1].get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            self.seen = self.seen or is_silence(status, response[1].get("Error", {}).get("Code", ""))
        if caught_exception is not None and not isinstance(caught_exception, EndpointConnectionError):
            self.seen = True


@dataclass(frozen=True)
class Clients:
    """The clients of one process for one configuration; safe to use from several threads.

    Attributes:
        repeating: For calls that may be repeated.
        single: For creations, conditional changes and completions: a repetition could meet its own first
            try and take it for someone else's.
        lost_tries: What became of the earlier tries of a call through `repeating`.
    """

    repeating: S3Client
    single: S3Client
    lost_tries: LostTries = field(default_factory=LostTries)


def endpoint_of(settings: Settings | _Connection) -> str | None:
    """Return the endpoint that is configured; None for AWS itself."""
    return settings.s3_endpoint_url or _first_set(_ENDPOINT_VARIABLES)


def clients_for(settings: Settings) -> Clients:
    """Return this process's clients; a forked child gets its own, because sockets cannot be shared.

    Raises:
        InvalidInputError: The profile does not exist, or the endpoint is no URL.
    """
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    connection = _Connection._make(getattr(settings, name) for name in _Connection._fields)
    return _clients(connection, os.getpid(), environment)


@lru_cache(maxsize=8)
def _clients(connection: _Connection, _process_id: int, _environment: tuple[tuple[str, str], ...]) -> Clients:
    try:
        session = boto3.Session(profile_name=connection.s3_profile)
        if connection.s3_lean:
            make_lean(session)
        region = connection.s3_region or _first_set(_REGION_VARIABLES) or session.region_name or "us-east-1"
        clients = Clients(
            repeating=_client(session, connection, region, tries=connection.s3_max_attempts),
            single=_client(session, connection, region, tries=1),
        )
    except ProfileNotFound as fault:
        raise InvalidInputError(
            f"S3: {scrubbed(fault)}; set LOCKGATE_S3_PROFILE to a profile of the AWS configuration"
        ) from None
    except (ValueError, BotoCoreError) as fault:
        raise InvalidInputError(
            f"S3: {scrubbed(fault)}; check LOCKGATE_S3_ENDPOINT_URL, AWS_ENDPOINT_URL and the region"
        ) from None
    clients.repeating.meta.events.register("needs-retry.s3", clients.lost_tries.note)
    return clients


def _client(session: boto3.Session, connection: _Connection, region: str, *, tries: int) -> S3Client:
    endpoint = endpoint_of(connection)
    path_style = endpoint is not None if connection.s3_path_style is None else connection.s3_path_style
    config = Config(
        connect_timeout=min(_CONNECT_TIMEOUT_S, connection.s3_timeout_s),
        read_timeout=connection.s3_timeout_s,
        retries={"mode": "standard", "total_max_attempts": tries},
        max_pool_connections=connection.parallelism,
        s3={"addressing_style": "path" if path_style else "auto"},
        user_agent_extra="lockgate",
    )
    return session.client("s3", endpoint_url=endpoint, region_name=region, config=config)


def _first_set(variables: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)
