"""Transport: send a request with AWS CRT, and return the answer or raise botocore's error for silence.

CRT signs a request, keeps connections, and checks that the answer arrives completely. It sends each request
once: retries belong to `client`. A transport belongs to one process: a fork has none of CRT's threads.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from io import BytesIO
from typing import Any, Final
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
from awscrt.exceptions import AwsCrtError
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import (
    ClientBootstrap,
    ClientTlsContext,
    DefaultHostResolver,
    EventLoopGroup,
    TlsContextOptions,
)
from awscrt.s3 import (
    S3Client,
    S3RequestTlsMode,
    S3RequestType,
    S3ResponseError,
    S3RetryConfig,
    S3RetryMode,
)
from botocore.credentials import Credentials
from botocore.exceptions import (
    BotoCoreError,
    ConnectionClosedError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
)

from lockgate.storage_core.concurrency import raise_error
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.forks import FORKS, Forkable, leave_to_parent
from lockgate.storage_core.stores.s3.credentials import read_credentials
from lockgate.storage_core.stores.s3.crt.answer import Answer
from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint
from lockgate.storage_core.stores.s3.crt.operation import Message
from lockgate.storage_core.stores.s3.crt.reach import need_descriptors, reach

_UNCHECKED: Final = "GetObject"
"""Operation name given to CRT: under any other it looks for errors in answers with status 200, and then does
not tell them from a 503, which is a refusal."""

_REFUSALS: Final = {
    "AWS_ERROR_S3_SLOW_DOWN": (503, "SlowDown", False),
    "AWS_ERROR_S3_INTERNAL_ERROR": (500, "InternalError", True),
    "AWS_ERROR_S3_REQUEST_TIMEOUT": (400, "RequestTimeout", False),
    "AWS_ERROR_S3_REQUEST_TIME_TOO_SKEWED": (403, "RequestTimeTooSkewed", True),
}
"""Answers for which CRT returns its own error instead, and whether they mean the same from any server."""

_CRT_ERRORS: Final = (AwsCrtError, RuntimeError)
"""What CRT raises in the calling thread: mostly the second."""

_AWS: Final = re.compile(
    r"(.+\.)?s3(-accesspoint)?(-fips)?(-accelerate)?(\.dualstack)?(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?"
)
_NEVER_SENT: Final = (
    "AWS_IO_DNS_|AWS_IO_SOCKET_(CONNECTION_REFUSED|INVALID_ADDRESS)|AWS_ERROR_MAX_FDS_EXCEEDED"
)
"""Errors that only a connection that is being made can have."""

_LOST: Final = "AWS_IO_SOCKET_(TIMEOUT|NO_ROUTE_TO_HOST)"
"""Errors that a connection that is being made can have, and one on which a part of a request was sent, when
nothing is acknowledged any more (tried with TCP_USER_TIMEOUT). So they do not show whether it was sent."""

_NOT_TRUSTED: Final = "AWS_IO_TLS_.*(CERTIFICATE|HOST_NAME|NEGOTIATION)"
MONITORED_S: Final = 30.0
"""CRT gives a connection up on which nothing has moved for so long; that cannot be changed."""

_LONGEST_S: Final = 900.0
_GBPS_A_CONNECTION: Final = 0.4
"""CRT opens so many connections as it needs for its target at this speed each."""

_SLOWEST_BYTES_PER_S: Final = 64 * 2**10
"""A body that is sent more slowly has no answer."""


class UnreadableAnswerError(HTTPClientError):
    """An answer with a header that is not UTF-8, which CRT cannot hand over."""


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

    def transport(self, endpoint: Endpoint) -> Transport:
        """Return a transport to an endpoint, which sends each request once.

        Raises:
            CredentialRetrievalError: The credentials cannot be read.
            EndpointConnectionError: CRT cannot be started.
            InvalidInputError: The certificates cannot be read.
            NoCredentialsError: There are none.
        """
        try:
            signer, refresh = (None, _none_needed) if endpoint.region is None else self._signing()
            client = self._client(endpoint, signer)
        except (OSError, *_CRT_ERRORS) as error:
            raise EndpointConnectionError(endpoint_url=f"{endpoint.host} ({error})", error=error) from None
        is_s3 = endpoint.scheme == "https" and _AWS.fullmatch(endpoint.host) is not None
        return Transport(
            endpoint,
            client,
            refresh,
            reached=partial(reach, endpoint, ca_file=self._ca_file, timeout_s=self._connect_timeout_s),
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
            try:
                options.override_default_trust_store_from_path(ca_filepath=self._ca_file)
                self._tls = ClientTlsContext(options)
            except (OSError, *_CRT_ERRORS) as error:
                raise InvalidInputError(
                    f"S3: the certificates in {self._ca_file} cannot be read ({error}); nothing was sent; "
                    "check AWS_CA_BUNDLE"
                ) from None
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


class Transport:
    """Sends requests to one endpoint. Thread-safe.

    Args:
        endpoint: Where to; CRT keeps the endpoint of a client's first request.
        client: CRT's client for this endpoint.
        refresh: Called before each request: refreshes credentials that expire, or raises boto3's error.
        reached: Called before the first request, and before one that follows a lost connection; raises
            boto3's error if there is no connection to the server.
        signing: Returns how a body with a digest is signed; None if requests are not signed.
        patience_s: Limit for an answer to a request without a body.
        knows_server: Whether only S3 itself can answer here.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        client: S3Client,
        refresh: Callable[[], None],
        *,
        reached: Callable[[], None],
        signing: Callable[[str], AwsSigningConfig] | None,
        patience_s: float,
        knows_server: bool,
    ) -> None:
        self._endpoint = endpoint
        self._client = client
        self._refresh = refresh
        self._reached = reached
        self._is_reached = False
        self._signing = signing
        self._patience_s = patience_s
        self._knows_server = knows_server

    def send(self, message: Message, ended: Callable[[Answer | None], None]) -> Callable[[], Answer]:
        """Send a request once; return a function that waits for its answer, whatever its status.

        That function raises an error of the class that botocore raises if there is no answer.

        Args:
            message: The request.
            ended: Called, from any thread, with the answer when it is there, or None if there is none; again
                if the end of a request comes after it was given up.

        Raises:
            BotoCoreError: The request was not sent; `ended` is not called.
        """
        self._refresh()
        if not self._is_reached:
            self._reached()
            self._is_reached = True
        headers = HttpHeaders([("Host", self._endpoint.host), *message.headers])
        if message.body or message.method in {"PUT", "POST"}:
            headers.add("Content-Length", str(len(message.body)))
        path = self._endpoint.path + message.path
        path = path if path.startswith("/") else f"/{path}"
        body = BytesIO(message.body) if message.body else None
        exchange = _Exchange(partial(self._answered_with, path), ended)
        due_s = time.monotonic() + self._patience_s + len(message.body) / _SLOWEST_BYTES_PER_S
        try:
            request = self._client.make_request(
                type=S3RequestType.DEFAULT,
                operation_name=_UNCHECKED,
                request=HttpRequest(message.method, path, headers, body),
                signing_config=self._signed(message),
                on_headers=exchange.on_headers,
                on_body=exchange.on_body,
                on_done=exchange.on_done,
            )
        except _CRT_ERRORS as error:
            raise EndpointConnectionError(endpoint_url=self._url(path), error=error) from None

        def answer() -> Answer:
            try:
                if not exchange.wait(max(0.0, due_s - time.monotonic())):
                    raise ReadTimeoutError(endpoint_url=self._url(path), error="no answer in time")
            finally:
                if not exchange.has_ended:
                    request.cancel()
                    ended(None)
            return exchange.answer()

        return answer

    def _signed(self, message: Message) -> AwsSigningConfig | None:
        """Return the signature that covers the body; None if the client's does not need to."""
        is_document = message.body and message.method != "PUT"
        if self._signing is None or not (is_document or self._endpoint.signs_data):
            return None
        return self._signing(sha256(message.body).hexdigest())

    def _answered_with(self, path: str, error: Exception) -> Answer:
        """Return the answer behind an error of CRT's, or raise botocore's error for it."""
        if isinstance(error, S3ResponseError):
            status: Any = error.status_code
            return Answer.of(status, error.headers or (), error.body or b"")
        name = error.name if isinstance(error, AwsCrtError) else ""
        if name == "AWS_ERROR_CRT_CALLBACK_EXCEPTION":
            raise UnreadableAnswerError(
                error="the answer has a header that is not UTF-8, which AWS CRT cannot hand over; set "
                "LOCKGATE_S3_CLIENT=boto3"
            )
        if name in _REFUSALS:
            status, code, is_certain = _REFUSALS[name]
            if not (is_certain or self._knows_server):
                # A proxy may answer so, too, and another server may once it has begun with the request.
                status, code = 503, "ServerOrProxyUnavailable"
            body = f"<Error><Code>{code}</Code><Message>{name}</Message></Error>".encode()
            return Answer(status, {"content-length": str(len(body))}, body)
        if re.match(_LOST, name):
            self._is_reached = False
        raise _silence(name, str(error), self._url(path))

    def _url(self, path: str) -> str:
        return f"{self._endpoint.scheme}://{self._endpoint.host}{path.partition('?')[0]}"


class _Exchange:
    """The state of one request, which CRT's threads report to.

    Args:
        answered_with: Returns the answer behind an error of CRT's, or raises botocore's error for it.
        ended: See `Transport.send`.

    Attributes:
        has_ended: Whether the answer is there, or there will be none.
    """

    def __init__(
        self, answered_with: Callable[[Exception], Answer], ended: Callable[[Answer | None], None]
    ) -> None:
        self.has_ended = False
        self._answered_with = answered_with
        self._ended = ended
        self._under_way = threading.Lock()  # an event costs six times as much
        self._under_way.acquire()
        self._status = 0
        self._headers: Sequence[tuple[str, str]] = ()
        self._pieces: list[bytes] = []
        self._answer: Answer | None = None
        self._silence: Exception | None = None

    def on_headers(self, status_code: int, headers: Sequence[tuple[str, str]], **_: Any) -> None:
        self._status, self._headers = status_code, headers

    def on_body(self, chunk: bytes, **_: Any) -> None:
        self._pieces.append(chunk)

    def on_done(self, error: Exception | None, **_: Any) -> None:
        try:
            if error is None:
                self._answer = Answer.of(self._status, self._headers, b"".join(self._pieces))
            else:
                self._answer = self._answered_with(error)
        except Exception as silence:  # noqa: BLE001 - raised by `answer`, in the thread that waits
            self._silence = silence.with_traceback(None)
        self.has_ended = True
        self._under_way.release()
        self._ended(self._answer)

    def wait(self, limit_s: float) -> bool:
        """Return whether the request has ended, after this time at the latest."""
        return self.has_ended or self._under_way.acquire(timeout=limit_s)

    def answer(self) -> Answer:
        """Return the answer to a request that has ended, or raise botocore's error for silence."""
        if self._answer is None:
            silence, self._silence = self._silence or AssertionError(), None
            raise_error(silence)
        return self._answer


def _silence(name: str, text: str, url: str) -> BotoCoreError:
    """Return botocore's error for a request without an answer."""
    where: Mapping[str, Any] = {"endpoint_url": url, "error": text}
    errors: Sequence[tuple[str, Callable[[], BotoCoreError]]] = (
        ("AWS_AUTH_", lambda: CredentialRetrievalError(provider="boto3", error_msg=text)),
        ("AWS_ERROR_HTTP_PROXY_", lambda: ProxyConnectionError(proxy_url="", **where)),
        (_NOT_TRUSTED, lambda: SSLError(**{**where, "error": f"CERTIFICATE_VERIFY_FAILED {text}"})),
        (_NEVER_SENT, lambda: EndpointConnectionError(**where)),
        ("AWS_IO_SOCKET_CLOSED|AWS_ERROR_HTTP_CONNECTION_CLOSED", lambda: ConnectionClosedError(**where)),
    )
    matching = (error for pattern, error in errors if re.match(pattern, name))
    return next(matching, lambda: HTTPClientError(error=text))()
