"""Connection to a server: pooled requests, retries, errors, and the session token in headers."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import RemoteDisconnected
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
)
from urllib3.util import Url

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.http.problems import ErrorBody, error_of
from lockgate.storage_core.http.tokens import first_token
from lockgate.storage_core.journal import process_journal
from lockgate.storage_core.retry import Retry
from lockgate.storage_core.settings import MIB

TRIES: Final = 8
"""Tries of one call, over about half a minute: enough for a server to restart."""

CONNECT_S: Final = 10.0
POOL_SIZE: Final = 32

RETRYABLE: Final = (StoreUnavailableError, JournalUnavailableError, OutcomeUnknownError)
"""Errors after which an idempotent call is retried."""

_NOT_SENT: Final = (NewConnectionError, ConnectTimeoutError, NameResolutionError)
_READS: Final = frozenset({"GET", "HEAD"})
_WRONG_TLS: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_TOO_MANY_REQUESTS: Final = 429
_REQUEST_TIMEOUT: Final = 408

T = TypeVar("T")

# If a server's machine is gone, the kernel ends the connection after a minute and a half of silence.
_SOCKET_OPTIONS: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """How messages name a kind of server, and the settings by which its clients reach it.

    Attributes:
        name: What messages call it.
        url_setting: Where its URL comes from.
        ca_setting: Setting of the certificates that verify it.
        example: A URL.
        advice: What to do after a change without an answer.
    """

    name: str
    url_setting: str
    ca_setting: str
    example: str
    advice: str


class Connection(Forkable):
    """Sends requests to one server. Safe to use from several threads; a fork opens new connections.

    Args:
        url: `http(s)://host:port`, with the path at which the server is mounted.
        peer: What kind of server it is, for messages.
        token_file: File whose first token is sent, read again for every request; None: no token is sent.
        ca_file: Certificates that verify the server's; None: the system's.
        timeout_s: Time to wait for a response.
        clock: Clock that waits between tries.
    """

    def __init__(
        self,
        url: str,
        *,
        peer: Peer,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self.url = url.rstrip("/")
        self._peer = peer
        self._token_file = token_file
        self._ca_file = ca_file
        self._timeout = urllib3.Timeout(connect=min(CONNECT_S, timeout_s), read=timeout_s)
        self._clock = clock
        self._prefix = self._checked_prefix()
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Share no socket with the parent."""
        options: dict[str, object] = {} if self._ca_file is None else {"ca_certs": str(self._ca_file)}
        self._pool = urllib3.connection_from_url(
            self.url,
            maxsize=POOL_SIZE,
            retries=False,
            timeout=self._timeout,
            socket_options=_SOCKET_OPTIONS,
            **options,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def call(self, method: str, path: str, kind: type[T], message: object = None) -> T:
        """Send an idempotent request with a small body, retried if necessary, and return the response.

        Args:
            method: HTTP method.
            path: Path below the URL.
            kind: Type of the response.
            message: Content of the JSON body; None: the request has no body.

        Raises:
            LockgateError: The server raised it, or no response came.
        """
        body = None if message is None else msgspec.json.encode(message)
        headers = {} if message is None else {"content-type": "application/json"}

        def once() -> T:
            with self.request(method, path, headers=headers, body=body) as response:
                return decoded(response, kind)

        return self.retry(once)

    def retry(self, call: Callable[[], T], may_repeat: Callable[[], bool] = lambda: True) -> T:
        """Call until it succeeds, fails with an error that is not retryable, or has used all tries.

        Args:
            call: An idempotent call.
            may_repeat: Returns whether it can be repeated now.

        Raises:
            OutcomeUnknownError: A try got no response, and no later one showed its outcome.
            LockgateError: The last try raised it.
        """
        unknown: OutcomeUnknownError | None = None

        def once() -> T:
            nonlocal unknown
            try:
                return call()
            except OutcomeUnknownError as error:
                unknown = error
                raise
            except NotAppliedError as error:
                if unknown is not None and isinstance(error, RETRYABLE):
                    raise unknown from error  # this try was not applied; an earlier one may have been
                raise

        tries = Retry(
            lambda error: isinstance(error, RETRYABLE) and may_repeat(),
            TRIES,
            pause_s=0.2,
            longest_pause_s=10.0,
            sleep=self._clock.sleep,
        )
        return tries.call(once)

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        body: bytes | Iterable[bytes] | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send one request, once; the response can be read within the block.

        Args:
            method: HTTP method.
            path: Path below the URL.
            headers: Headers of the request.
            body: Pieces are sent in chunks unless the headers have a `content-length`.

        Raises:
            StoreUnavailableError: The request was not sent, or was a read.
            OutcomeUnknownError: The request was sent, and no response came.
            LockgateError: The server raised it.
        """
        is_read = method in _READS
        call = f"{method} {self.url}{path}"
        sent = {**headers, **self._credentials(), **process_journal.inject(), "accept-encoding": "identity"}
        try:
            response = self._pool.request(
                method,
                f"{self._prefix}{path}",
                headers=sent,
                body=body,
                preload_content=False,
                decode_content=False,
                redirect=False,
            )
            try:
                process_journal.extract(response.headers)
                if response.status >= 300:
                    raise self._response_error(call, is_read, response.status, response.read(MIB))
                yield response
                response.drain_conn()
            except BaseException:
                response.close()  # unread bytes must not be taken for the next response
                raise
            response.release_conn()
        except HTTPError as error:
            raise self._connection_error(call, is_read, error) from error

    def _credentials(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"authorization": f"Bearer {first_token(self._token_file)}"}

    def _checked_prefix(self) -> str:
        """Return the path of the URL; raise if the settings can never work."""
        peer = self._peer
        parsed = check_url(self.url, peer)
        if self._ca_file is not None and parsed.scheme == "http":
            raise InvalidInputError(
                f"{peer.url_setting}: {parsed.scheme}://{parsed.netloc} is plain HTTP, which "
                f"{peer.ca_setting} cannot verify; nothing was sent; use https, or unset the latter"
            )
        if self._ca_file is not None:
            check_certificates(self._ca_file, peer.ca_setting)
        self._credentials()
        return parsed.path or ""

    def _response_error(self, call: str, is_read: bool, status: int, text: bytes) -> LockgateError:
        """Return the error of a response, which may come from a proxy."""
        try:
            return error_of(decode_json(text, ErrorBody))
        except msgspec.MsgspecError:
            answered = f"{call} was answered with {status}, and not by a {self._peer.name}"
        # A proxy also returns 408 or 503 for a request that the server received but did not answer.
        gave_up = status >= 500 or status == _REQUEST_TIMEOUT
        if status == _TOO_MANY_REQUESTS or (gave_up and is_read):
            return StoreUnavailableError(f"{answered}; nothing was changed; try again later")
        if gave_up:
            return OutcomeUnknownError(f"{answered}; it may have been done; check the state, then try again")
        return InvalidInputError(f"{answered}; nothing was changed; check {self._peer.url_setting}")

    def _connection_error(self, call: str, is_read: bool, error: HTTPError) -> LockgateError:
        peer = self._peer
        failed = f"{call}: {_reason(error)}"
        if self.url.startswith("http:") and any(isinstance(part, RemoteDisconnected) for part in error.args):
            failed = f"{failed}; if the server uses TLS, {peer.url_setting} must begin with https"
        if isinstance(error, SSLError) and any(word in str(error) for word in _WRONG_TLS):
            return InvalidInputError(
                f"{failed}; nothing was sent; check that {peer.url_setting} begins with https and "
                f"names the host of the certificate, and that {peer.ca_setting} names its issuer"
            )
        if isinstance(error, _NOT_SENT):
            return StoreUnavailableError(
                f"{failed}; the {peer.name} cannot be reached; nothing was done; check that it runs"
            )
        if is_read:
            return StoreUnavailableError(f"{failed}; the {peer.name}'s response broke off; try again")
        return OutcomeUnknownError(
            f"{failed}; the {peer.name} gave no answer; it may have been done; {peer.advice}"
        )


def check_certificates(path: Path, setting: str) -> None:
    """Check trusted certificates before a request: its error would look like one of the network.

    Raises:
        InvalidInputError: They cannot be read.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"{setting}: the certificates in {path} cannot be read ({error.strerror or error}); nothing was "
            "sent; name a file of certificates in PEM"
        ) from None


def check_url(url: str, peer: Peer) -> Url:
    """Return the parts of a server's URL.

    Raises:
        InvalidInputError: It is no URL of a server, or has a password or a query.
    """
    try:
        parsed = urllib3.util.parse_url(url)
    except LocationParseError as error:
        raise InvalidInputError(f"{peer.url_setting}: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.auth or parsed.query:
        raise InvalidInputError(
            f"{peer.url_setting}: {parsed.scheme}://{parsed.netloc} is no URL of a {peer.name}; "
            f"an example is {peer.example}"
        )
    return parsed


def decoded(response: urllib3.BaseHTTPResponse, kind: type[T]) -> T:
    """Return the JSON of a response.

    Raises:
        OutcomeUnknownError: The response has no such JSON.
    """
    try:
        return decode_json(response.read(), kind)
    except msgspec.MsgspecError as error:
        raise OutcomeUnknownError(
            f"the server's response cannot be read: {error}; check that client and server have the same "
            "version"
        ) from None


def _reason(error: HTTPError) -> str:
    """Return the reason of a failure, without the objects and pool names that urllib3 puts before it."""
    inner = next((part for part in reversed(error.args) if isinstance(part, BaseException)), error)
    return str(inner).rpartition(": ")[2] or type(inner).__name__
