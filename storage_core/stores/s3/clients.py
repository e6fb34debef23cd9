"""Create S3 clients from settings: one that retries calls, and one that never does.

Frequent calls are sent by AWS CRT where it is installed (`crt.client`), all others by boto3.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import CredentialProvider, CredentialResolver, Credentials
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
from botocore.httpsession import get_cert_path

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.s3.answers import LISTINGS, before_parse, make_readable, timestamp
from lockgate.storage_core.stores.s3.credentials import read_credentials
from lockgate.storage_core.stores.s3.errors import (
    NO_CONNECTION,
    NO_CREDENTIALS,
    is_never_sent,
    is_outcome_unknown,
    scrubbed,
)

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from lockgate.storage_core.stores.s3.crt.client import CrtClient

_CONNECT_TIMEOUT_S: Final = 10.0
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ANY_CA_BUNDLE: Final = "REQUESTS_CA_BUNDLE"
"""What botocore takes where neither AWS_CA_BUNDLE nor the profile names trusted certificates."""


class _Connection(NamedTuple):
    """The settings that determine clients. Settings that are equal in these share clients."""

    s3_endpoint_url: str | None
    s3_region: str | None
    s3_profile: str | None
    s3_anonymous: bool
    s3_path_style: bool | None
    s3_timeout_s: float
    s3_max_attempts: int
    s3_client: str
    s3_credentials: Callable[[], Credentials | None] | None
    far_calls: int


class GivenCredentials(CredentialProvider):
    """Credentials that the settings contain, in place of boto3's chain."""

    METHOD = "lockgate"

    def __init__(self, source: Callable[[], Credentials | None]) -> None:
        super().__init__()
        self._source = source

    def load(self) -> Credentials | None:
        """Return the credentials, which refresh themselves."""
        return self._source()


class LostTries(threading.local):
    """Records whether an attempt of this thread's call got no definite answer.

    A retried call may have been applied by an earlier attempt, even if the last attempt was refused.
    """

    seen = False

    def note(
        self,
        caught_exception: Exception | None = None,
        response: tuple[Any, dict[str, Any]] | None = None,
        **_: Any,
    ) -> None:
        """Handle botocore's `needs-retry` event, which it emits after every attempt."""
        if response is not None:
            status = response[1].get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            self.seen = self.seen or is_outcome_unknown(status, response[1].get("Error", {}).get("Code", ""))
        if caught_exception is not None and not is_never_sent(caught_exception):
            self.seen = True

    def note_error(self, error: Exception) -> None:
        """Note the error of an attempt that CRT sent."""
        if isinstance(error, ClientError):
            self.note(response=(None, dict(error.response)))
        else:
            self.note(caught_exception=error)


@dataclass(frozen=True)
class Clients:
    """The clients of one process for one configuration. Thread-safe.

    Attributes:
        repeating: Client for calls that may be retried.
        single: Client for creations, conditional changes and completions: a retry could find the effect of
            its first attempt and take it for another caller's.
        ahead: `single`, where it can send calls whose answers it does not wait for.
        lost_tries: Whether attempts through `repeating` got no answer.
    """

    repeating: S3Client
    single: S3Client
    ahead: CrtClient | None = None
    lost_tries: LostTries = field(default_factory=LostTries)

    @property
    def sends_checksums(self) -> bool:
        """Whether requests contain checksums: not with AWS_REQUEST_CHECKSUM_CALCULATION=when_required."""
        config: Any = self.repeating.meta.config
        return bool(config.request_checksum_calculation != "when_required")

    @property
    def asks_for_checksums(self) -> bool:
        """Whether reads ask for checksums: not with AWS_RESPONSE_CHECKSUM_VALIDATION=when_required."""
        config: Any = self.repeating.meta.config
        return bool(config.response_checksum_validation != "when_required")


def endpoint_of(settings: Settings | _Connection) -> str | None:
    """Return the configured endpoint, or None for AWS."""
    return settings.s3_endpoint_url or _first_set(_ENDPOINT_VARIABLES)


def region_of(settings: Settings | _Connection, found: str | None = None) -> str:
    """Return the configured region, else the one found in the AWS configuration, else the default."""
    return settings.s3_region or _first_set(_REGION_VARIABLES) or found or "us-east-1"


def clients_for(settings: Settings) -> Clients:
    """Return this process's clients. A forked child creates new ones, because sockets cannot be shared.

    Raises:
        BotoCoreError: The credentials cannot be read; one of `read_credentials`.
        InvalidInputError: The profile does not exist, the endpoint is not a URL, or the trusted certificates
            cannot be read.
    """
    names = (name for name in os.environ if name.startswith("AWS_") or name == _ANY_CA_BUNDLE)
    environment = tuple((name, os.environ[name]) for name in sorted(names))
    connection = _Connection._make(getattr(settings, name) for name in _Connection._fields)
    with _lock:
        return _clients(connection, os.getpid(), environment)


_lock = threading.Lock()
"""So that threads that begin together share clients."""


def _unlock_in_child() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may hold the old one
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


@lru_cache(maxsize=8)
def _clients(connection: _Connection, _process_id: int, _environment: tuple[tuple[str, str], ...]) -> Clients:
    try:
        return _new_clients(connection)
    except ProfileNotFound as error:
        raise InvalidInputError(
            f"S3: {scrubbed(error)}; set LOCKGATE_S3_PROFILE to a profile of the AWS configuration"
        ) from None
    except (*NO_CONNECTION, *NO_CREDENTIALS):
        raise
    except (ValueError, BotoCoreError) as error:
        raise InvalidInputError(
            f"S3: {scrubbed(error)}; check LOCKGATE_S3_ENDPOINT_URL, AWS_ENDPOINT_URL and the region"
        ) from None


def _new_clients(connection: _Connection) -> Clients:
    core = botocore.session.Session(profile=connection.s3_profile)
    if connection.s3_credentials is not None:
        given = GivenCredentials(connection.s3_credentials)
        core.register_component("credential_provider", CredentialResolver([given]))
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=timestamp)
    bundle: Any = core.get_config_variable("ca_bundle") or os.environ.get(_ANY_CA_BUNDLE)
    if bundle and (endpoint_of(connection) or "https:").startswith("https:"):
        _check_bundle(bundle)
    session = boto3.Session(botocore_session=core)
    region = region_of(connection, session.region_name)
    if not connection.s3_anonymous:
        read_credentials(session.get_credentials)  # boto3's clients get them, too, and do not say what failed
    repeating = _client(session, connection, region, tries=connection.s3_max_attempts)
    single = _client(session, connection, region, tries=1)
    lost = LostTries()
    repeating.meta.events.register("needs-retry.s3", lost.note)
    if connection.s3_client == "boto3" or not has_crt():
        return Clients(repeating, single, lost_tries=lost)
    from lockgate.storage_core.stores.s3.crt.client import CrtClient, Network  # noqa: PLC0415 - see has_crt
    from lockgate.storage_core.stores.s3.crt.connections import MONITORED_S, Connections  # noqa: PLC0415

    if connection.s3_timeout_s > MONITORED_S:
        return Clients(repeating, single, lost_tries=lost)

    connections = Connections(
        cache(session.get_credentials),
        ca_file=str(get_cert_path(bundle or True)),
        knows_server=not bundle,
        connect_timeout_s=min(_CONNECT_TIMEOUT_S, connection.s3_timeout_s),
        timeout_s=connection.s3_timeout_s,
        parallelism=connection.far_calls,
    )
    network = Network(
        lambda other: _client(session, connection, other or region, tries=1),
        connections,
    )
    tries = connection.s3_max_attempts
    ahead = CrtClient(single, network, 1, lost.note_error)
    return Clients(
        repeating=cast("S3Client", CrtClient(repeating, network, tries, lost.note_error)),
        single=cast("S3Client", ahead),
        ahead=ahead,
        lost_tries=lost,
    )


@cache
def has_crt() -> bool:
    """Return whether AWS CRT can be used; where it has no wheel, boto3 sends all calls."""
    try:
        import_module("awscrt.s3")
    except ImportError:
        return False
    return True


def _client(session: boto3.Session, connection: _Connection, region: str, *, tries: int) -> S3Client:
    endpoint = endpoint_of(connection)
    if endpoint is not None:
        _check_endpoint(endpoint)
    path_style = endpoint is not None if connection.s3_path_style is None else connection.s3_path_style
    config = Config(
        connect_timeout=min(_CONNECT_TIMEOUT_S, connection.s3_timeout_s),
        read_timeout=connection.s3_timeout_s,
        retries={"mode": "standard", "total_max_attempts": tries},
        max_pool_connections=connection.far_calls,
        s3={"addressing_style": "path" if path_style else "auto"},
        user_agent_extra="lockgate",
        signature_version=UNSIGNED if connection.s3_anonymous else None,
    )
    client = session.client("s3", endpoint_url=endpoint, region_name=region, config=config)
    client.meta.events.register("before-parse.s3", before_parse)
    for listing in LISTINGS:
        client.meta.events.register_first(f"before-parse.s3.{listing}", make_readable)
    if not connection.s3_anonymous:
        client.meta.events.register_first("before-sign.s3", partial(_check_credentials, session))
    return client


def _check_endpoint(endpoint: str) -> None:
    """Check an endpoint here: botocore does so at each call, and then it is not known what was sent.

    Raises:
        ValueError: It is not a URL of a server.
    """
    parts = urlsplit(endpoint)  # a port that is none is a ValueError, too
    is_server = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    if not is_server or parts.query or parts.fragment:
        raise ValueError(f"the endpoint {endpoint} is not http://HOST:PORT or https://HOST:PORT")


def _check_bundle(path: str) -> None:
    """Check trusted certificates here: boto3 reads them at each connection, and its error is like a call's.

    Raises:
        InvalidInputError: They cannot be read.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:
        raise InvalidInputError(
            f"S3: the certificates in {path} cannot be read ({error}); nothing was sent; check "
            f"AWS_CA_BUNDLE, the profile's ca_bundle and {_ANY_CA_BUNDLE}"
        ) from None


def _check_credentials(session: boto3.Session, **_: Any) -> None:
    """Handle botocore's `before-sign` event: a signer does not check credentials or name an empty key."""
    read_credentials(session.get_credentials)


def _first_set(variables: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)
