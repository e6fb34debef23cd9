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

from awscrt.auth import AwsSigningConfig
from awscrt.exceptions import AwsCrtError
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.s3 import S3ChecksumConfig, S3Client, S3RequestType, S3ResponseError
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
from lockgate.storage_core.stores.s3.answers import CutAnswerError
from lockgate.storage_core.stores.s3.crt.answer import Answer
from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint
from lockgate.storage_core.stores.s3.crt.operation import Message

_UNCHECKED: Final = "GetObject"
"""The operation name that CRT gets; see the package."""

_VERIFIED: Final = S3ChecksumConfig(validate_response=True)

_REFUSALS: Final = {
    "AWS_ERROR_S3_SLOW_DOWN": (503, "SlowDown", False),
    "AWS_ERROR_S3_INTERNAL_ERROR": (500, "InternalError", True),
    "AWS_ERROR_S3_REQUEST_TIMEOUT": (400, "RequestTimeout", False),
    "AWS_ERROR_S3_REQUEST_TIME_TOO_SKEWED": (403, "RequestTimeTooSkewed", True),
}
"""Answers for which CRT returns its own error instead, and whether they mean the same from any server."""

CRT_ERRORS: Final = (AwsCrtError, RuntimeError)
"""What CRT raises in the calling thread: mostly the second."""

_NEVER_SENT: Final = (
    "AWS_IO_DNS_|AWS_IO_SOCKET_(CONNECTION_REFUSED|INVALID_ADDRESS)|AWS_ERROR_MAX_FDS_EXCEEDED"
)
"""Errors that only a connection that is being made can have."""

_NOT_TRUSTED: Final = "AWS_IO_TLS_.*(CERTIFICATE|HOST_NAME|NEGOTIATION)"
_SLOWEST_BYTES_PER_S: Final = 64 * 2**10
"""A body that is sent more slowly has no answer."""


class Transport:
    """Sends requests to one endpoint. Thread-safe.

    Args:
        endpoint: Where to; CRT keeps the endpoint of a client's first request.
        client: CRT's client for this endpoint.
        refresh: Called before each request: refreshes credentials that expire, or raises boto3's error.
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
        signing: Callable[[str], AwsSigningConfig] | None,
        patience_s: float,
        knows_server: bool,
    ) -> None:
        self._endpoint = endpoint
        self._client = client
        self._refresh = refresh
        self._signing = signing
        self._patience_s = patience_s
        self._knows_server = knows_server

    def send(self, message: Message, arrived: Callable[[], None] = lambda: None) -> Callable[[], Answer]:
        """Send a request once; return a function that waits for its answer, whatever its status.

        That function raises an error of the class that botocore raises if there is no answer.

        Args:
            message: The request.
            arrived: Called, from any thread, when the answer is there or there will be none; again if the
                end of a request comes after it was given up.

        Raises:
            BotoCoreError: The request was not sent; `arrived` is not called.
        """
        self._refresh()
        headers = HttpHeaders([("Host", self._endpoint.host), *message.headers])
        if message.body or message.method in {"PUT", "POST"}:
            headers.add("Content-Length", str(len(message.body)))
        path = self._endpoint.path + message.path
        path = path if path.startswith("/") else f"/{path}"
        body = BytesIO(message.body) if message.body else None
        exchange = _Exchange(partial(self._answered_with, path), arrived)
        due_s = time.monotonic() + self._patience_s + len(message.body) / _SLOWEST_BYTES_PER_S
        try:
            request = self._client.make_request(
                type=S3RequestType.DEFAULT,
                operation_name=_UNCHECKED,
                request=HttpRequest(message.method, path, headers, body),
                signing_config=self._signed(message),
                checksum_config=_VERIFIED if message.is_verified else None,
                on_headers=exchange.on_headers,
                on_body=exchange.on_body,
                on_done=exchange.on_done,
            )
        except CRT_ERRORS as error:
            raise EndpointConnectionError(endpoint_url=self._url(path), error=error) from None

        def answer() -> Answer:
            try:
                if not exchange.wait(max(0.0, due_s - time.monotonic())):
                    raise ReadTimeoutError(endpoint_url=self._url(path), error="no answer in time")
            finally:
                if not exchange.has_ended:
                    request.cancel()
                    arrived()
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
        if name == "AWS_ERROR_S3_RESPONSE_CHECKSUM_MISMATCH":
            raise CutAnswerError(error="its checksum differs from the body's")
        if name in _REFUSALS:
            status, code, is_certain = _REFUSALS[name]
            if not (is_certain or self._knows_server):
                # A proxy may answer so, too, and another server may once it has begun with the request.
                status, code = 503, "ServerOrProxyUnavailable"
            body = f"<Error><Code>{code}</Code><Message>{name}</Message></Error>".encode()
            return Answer(status, {"content-length": str(len(body))}, body)
        raise _silence(name, str(error), self._url(path))

    def _url(self, path: str) -> str:
        return f"{self._endpoint.scheme}://{self._endpoint.host}{path.partition('?')[0]}"


class _Exchange:
    """The state of one request, which CRT's threads report to.

    Args:
        answered_with: Returns the answer behind an error of CRT's, or raises botocore's error for it.
        arrived: See `Transport.send`.

    Attributes:
        has_ended: Whether the answer is there, or there will be none.
    """

    def __init__(self, answered_with: Callable[[Exception], Answer], arrived: Callable[[], None]) -> None:
        self.has_ended = False
        self._answered_with = answered_with
        self._arrived = arrived
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
        self._arrived()

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
