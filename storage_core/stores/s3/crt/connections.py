"""Connections: CRT's parts that the requests of a process share, and what is tried before CRT starts."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from awscrt.auth import (
    AwsCredentials,
    AwsCredentialsProvider,
    AwsSignatureType,
    AwsSignedBodyHeaderType,
    AwsSignedBodyValue,
    AwsSigningAlgorithm,
    AwsSigningConfig,
)
from awscrt.io import (
    ClientBootstrap,
    ClientTlsContext,
    DefaultHostResolver,
    EventLoopGroup,
    TlsContextOptions,
)
from awscrt.s3 import S3Client, S3RequestTlsMode, S3RetryConfig, S3RetryMode
from botocore.credentials import Credentials
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, SSLError
from botocore.httpsession import create_urllib3_context

from lockgate.storage_core.forks import FORKS, Forkable, leave_to_parent
from lockgate.storage_core.stores.s3.credentials import read_credentials
from lockgate.storage_core.stores.s3.crt.transport import CRT_ERRORS, Transport

if TYPE_CHECKING:
    from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint

MONITORED_S: Final = 30.0
"""CRT gives a connection up on which nothing has moved for so long; that cannot be changed."""

_LONGEST_S: Final = 900.0
_GBPS_A_CONNECTION: Final = 0.4
"""CRT opens so many connections as it needs for its target at this speed each."""

_AWS: Final = re.compile(
    r"(.+\.)?s3(-accesspoint)?(-fips)?(-accelerate)?(\.dualstack)?(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?"
)
_PORTS: Final = {"http": 80, "https": 443}
_DESCRIPTORS: Final = 32 + 4 * (os.cpu_count() or 1)
"""Ten were taken with two processors."""


class _Current:
    """The credentials that CRT reads. CRT keeps this object alive, so it does not refer to CRT's."""

    credentials: AwsCredentials | None = None

    def get(self) -> AwsCredentials | None:
        return self.credentials


class Connections(Forkable):
    """Makes the transports of one configuration, which share threads, host names and certificates.

    It is not thread-safe. The parts of CRT that start threads are made for the first transport. A fork has
    none of these threads: it leaves the parts to its parent, because to free one there ends the process.

    Args:
        credentials: Returns boto3's credentials, which refresh themselves; None if there are none.
        ca_file: Trusted certificates.
        knows_server: Whether only the server that a host's name belongs to has a trusted certificate for it.
        connect_timeout_s: Limit for a connection.
        timeout_s: Limit for an answer; from `MONITORED_S` on the limit for silence, which CRT watches.
        parallelism: Number of requests that can be under way at a time.

    Attributes:
        patience_s: Limit for an answer to a request without a body.
    """

    def __init__(
        self,
        credentials: Callable[[], Credentials | None],
        *,
        ca_file: str,
        knows_server: bool,
        connect_timeout_s: float,
        timeout_s: float,
        parallelism: int,
    ) -> None:
        self.patience_s = connect_timeout_s + timeout_s if timeout_s < MONITORED_S else _LONGEST_S
        self._target_gbps = max(10.0, _GBPS_A_CONNECTION * parallelism)
        self._credentials = credentials
        self._current = _Current()
        self._ca_file = ca_file
        self._knows_server = knows_server
        self._connect_timeout_s = connect_timeout_s
        self._bootstrap: ClientBootstrap | None = None
        self._signer: tuple[AwsCredentialsProvider, Callable[[], None]] | None = None
        self._tls: ClientTlsContext | None = None
        self._parts: list[object] = []
        FORKS.register(self)

    def reach(self, endpoint: Endpoint) -> None:
        """Connect to a server as boto3 would, and disconnect; raises boto3's error if that fails."""
        connect(endpoint, ca_file=self._ca_file, timeout_s=self._connect_timeout_s)

    def transport(self, endpoint: Endpoint) -> Transport:
        """Return a transport to an endpoint, which sends each request once.

        Raises:
            CredentialRetrievalError: The credentials cannot be read.
            EndpointConnectionError: CRT cannot be started.
            NoCredentialsError: There are none.
        """
        try:
            signer, refresh = (None, _none_needed) if endpoint.region is None else self._signing()
            client = self._client(endpoint, signer)
        except (OSError, *CRT_ERRORS) as error:
            raise EndpointConnectionError(endpoint_url=f"{endpoint.host} ({error})", error=error) from None
        is_s3 = endpoint.scheme == "https" and _AWS.fullmatch(endpoint.host) is not None
        return Transport(
            endpoint,
            client,
            refresh,
            signing=None if signer is None else partial(_signing, endpoint, signer),
            patience_s=self.patience_s,
            knows_server=is_s3 and self._knows_server,
        )

    def after_fork_in_child(self) -> None:
        """Keep the parent's parts alive for ever."""
        for part in self._parts:
            leave_to_parent(part)

    def _client(self, endpoint: Endpoint, signer: AwsCredentialsProvider | None) -> S3Client:
        need_descriptors()
        if self._bootstrap is None:
            threads = EventLoopGroup(1)
            self._bootstrap = ClientBootstrap(threads, DefaultHostResolver(threads))
            self._parts += [threads, self._bootstrap]
        tls, signing = None, None
        if endpoint.scheme == "https":
            tls = self._context().new_connection_options()
            tls.set_server_name(urlsplit(f"//{endpoint.host}").hostname)
        if signer is not None:
            signing = _signing(endpoint, signer, AwsSignedBodyValue.UNSIGNED_PAYLOAD)
        client = S3Client(
            bootstrap=self._bootstrap,
            region=endpoint.region or "us-east-1",
            signing_config=signing,
            tls_mode=S3RequestTlsMode.DISABLED if tls is None else S3RequestTlsMode.ENABLED,
            tls_connection_options=tls,
            retry_config=S3RetryConfig(retry_mode=S3RetryMode.NONE),
            throughput_target_gbps=self._target_gbps,
            connect_timeout_ms=int(self._connect_timeout_s * 1000),
        )
        self._parts += [client, tls, signing]
        return client

    def _context(self) -> ClientTlsContext:
        if self._tls is None:
            options = TlsContextOptions()
            options.override_default_trust_store_from_path(ca_filepath=self._ca_file)
            self._tls = ClientTlsContext(options)
            self._parts.append(self._tls)
        return self._tls

    def _signing(self) -> tuple[AwsCredentialsProvider, Callable[[], None]]:
        """Return where CRT finds the credentials, and what is called before each request.

        CRT keeps credentials that cannot change. For others it asks Python at each request.
        """
        if self._signer is None:
            now = read_credentials(self._credentials)
            if type(self._credentials()) is Credentials:
                fixed = AwsCredentialsProvider.new_static(now.access_key, now.secret_key, now.token or None)
                self._signer = fixed, _none_needed
            else:
                self._signer = AwsCredentialsProvider.new_delegate(self._current.get), self._refresh
            self._parts.append(self._signer[0])
        return self._signer

    def _refresh(self) -> None:
        """Refresh credentials that expire, in the thread that gets the error: CRT's only reads them."""
        now = read_credentials(self._credentials)
        self._current.credentials = AwsCredentials(now.access_key, now.secret_key, now.token or None)


def _none_needed() -> None:
    """Refresh no credentials."""


def _signing(endpoint: Endpoint, signer: AwsCredentialsProvider, body: str) -> AwsSigningConfig:
    """Return how a request is signed, with the digest of its body or what stands for it."""
    return AwsSigningConfig(
        algorithm=AwsSigningAlgorithm.V4,
        signature_type=AwsSignatureType.HTTP_REQUEST_HEADERS,
        credentials_provider=signer,
        region=endpoint.region,
        service="s3",
        use_double_uri_encode=False,
        should_normalize_uri_path=False,
        signed_body_value=body,
        signed_body_header_type=AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
    )


def need_descriptors() -> None:
    """Check that CRT can start its threads: where one gets no file descriptors, CRT ends the process.

    Raises:
        OSError: Too few are free.
    """
    with ExitStack() as sockets:
        for _ in range(_DESCRIPTORS):
            sockets.enter_context(socket.socket())


def connect(endpoint: Endpoint, *, ca_file: str, timeout_s: float) -> None:
    """Connect to a server, by TLS as boto3 would, and disconnect.

    Raises:
        ConnectTimeoutError: There was no connection in time.
        EndpointConnectionError: There is no connection.
        SSLError: Its certificate is not trusted.
    """
    url = f"{endpoint.scheme}://{endpoint.host}"
    try:
        place = urlsplit(url)
        address = place.hostname, place.port or _PORTS[endpoint.scheme]
        with socket.create_connection(address, timeout_s) as connection:
            if endpoint.scheme == "https":
                context = create_urllib3_context()
                context.load_verify_locations(ca_file)
                context.check_hostname, context.hostname_checks_common_name = True, False
                context.wrap_socket(connection, server_hostname=place.hostname).close()
    except ssl.SSLCertVerificationError as error:
        raise SSLError(endpoint_url=url, error=error) from None
    except TimeoutError as error:
        raise ConnectTimeoutError(endpoint_url=url, error=error) from None
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=f"{url} ({error})", error=error) from None
