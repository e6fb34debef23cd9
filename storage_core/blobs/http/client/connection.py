"""From here to a blob server: pooled connections, tries, errors, and the stamps that travel both ways."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import RemoteDisconnected
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
import urllib3
from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_random_exponential
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
)

from lockgate.storage_core.blobs.http.messages import Trouble, error_of
from lockgate.storage_core.blobs.http.server.auth.token_file import first_token
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import (
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal import propagation
from lockgate.storage_core.settings import MIB

TRIES: Final = 8
"""Of one call, over half a minute or so: a server that is started anew is back by then."""

CONNECT_S: Final = 10.0
POOL: Final = 32
"""Connections that are kept."""

WORTH_ANOTHER: Final = (StoreUnavailableError, JournalUnavailableError, OutcomeUnknownError)
"""What a call that does no harm when it is done twice is tried again after."""

_NOT_SENT: Final = (NewConnectionError, ConnectTimeoutError, NameResolutionError)
_READS: Final = frozenset({"GET", "HEAD"})
_WRONG_TLS: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_TOO_MUCH: Final = 429
_TOO_LATE: Final = 408

T = TypeVar("T")

# A server's machine that is gone says nothing: after a minute and a half of silence the kernel says so.
_SOCKET_OPTIONS: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
]


class Connection(Forkable):
    """Calls to one blob server. Safe to use from several threads; a fork connects anew.

    Args:
        url: `http(s)://host:port`, with the path that it is mounted at.
        token_file: Its first token is shown, read anew for every call; None: none is.
        ca_file: The server's certificate is verified by these; None: the system's.
        timeout_s: For one answer.
        clock: Waits between two tries.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self.url = url.rstrip("/")
        self._token_file = token_file
        self._ca_file = ca_file
        self._timeout = urllib3.Timeout(connect=min(CONNECT_S, timeout_s), read=timeout_s)
        self._clock = clock
        self._prefix = self._checked()
        self.after_fork_in_child()
        FORKS.tell(self)

    def after_fork_in_child(self) -> None:
        """Share no socket with the parent."""
        options: dict[str, object] = {} if self._ca_file is None else {"ca_certs": str(self._ca_file)}
        self._pool = urllib3.connection_from_url(
            self.url,
            maxsize=POOL,
            retries=False,
            timeout=self._timeout,
            socket_options=_SOCKET_OPTIONS,
            **options,
        )

    def close(self) -> None:
        """Hang up."""
        self._pool.close()

    def call(self, verb: str, path: str, kind: type[T], told: object = None) -> T:
        """Ask for something small, again if need be; returns the answer.

        Args:
            verb: Of HTTP.
            path: Below the URL.
            kind: Of the answer.
            told: The request's JSON; None: it has no body.

        Raises:
            LockgateError: What the server raised, or what became of the call on the way.
        """
        body = None if told is None else msgspec.json.encode(told)
        headers = {} if told is None else {"content-type": "application/json"}

        def once() -> T:
            with self.exchange(verb, path, headers=headers, body=body) as answer:
                return decoded(answer, kind)

        return self.repeatedly(once)

    def repeatedly(self, call: Callable[[], T], may_repeat: Callable[[], bool] = lambda: True) -> T:
        """Call until it passes, is refused, or was tried often enough.

        Args:
            call: Does no harm when it is done twice.
            may_repeat: Asked before it is done again.

        Raises:
            OutcomeUnknownError: Some try got no answer, and none after it told what came of it.
            LockgateError: As `call` raised it last.
        """
        unknown: OutcomeUnknownError | None = None

        def is_worth_another(state: RetryCallState) -> bool:
            error = None if state.outcome is None else state.outcome.exception()
            return isinstance(error, WORTH_ANOTHER) and may_repeat()

        def once() -> T:
            nonlocal unknown
            try:
                return call()
            except OutcomeUnknownError as error:
                unknown = error
                raise
            except NotAppliedError as error:
                if unknown is not None and isinstance(error, WORTH_ANOTHER):
                    raise unknown from error  # this try was not applied; the one before it may have been
                raise

        tries = Retrying(
            retry=is_worth_another,
            stop=stop_after_attempt(TRIES),
            wait=wait_random_exponential(multiplier=0.2, max=10.0),
            sleep=self._clock.sleep,
            reraise=True,
        )
        return tries(once)

    @contextmanager
    def exchange(
        self,
        verb: str,
        path: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        body: bytes | Iterable[bytes] | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send one request, once; the answer can be read within the block.

        Args:
            verb: Of HTTP.
            path: Below the URL.
            headers: Of the request.
            body: Pieces without a `content-length` among the headers are sent in chunks.

        Raises:
            StoreUnavailableError: It was not sent, or was only to read.
            OutcomeUnknownError: It was sent, and no answer came.
            LockgateError: What the server raised.
        """
        is_read = verb in _READS
        sent = {**headers, **self._credentials(), **propagation.inject(), "accept-encoding": "identity"}
        try:
            answer = self._pool.request(
                verb,
                f"{self._prefix}{path}",
                headers=sent,
                body=body,
                preload_content=False,
                decode_content=False,
                redirect=False,
            )
            try:
                propagation.extract(answer.headers)
                if answer.status >= 300:
                    raise self._refusal(f"{verb} {self.url}{path}", is_read, answer.status, answer.read(MIB))
                yield answer
                answer.drain_conn()
            except BaseException:
                answer.close()  # what is left of it must not be taken for the next call's answer
                raise
            answer.release_conn()
        except HTTPError as error:
            raise self._broken(f"{verb} {self.url}{path}", is_read, error) from error

    def _credentials(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"authorization": f"Bearer {first_token(self._token_file)}"}

    def _checked(self) -> str:
        """Refuse what can never work, before the first call; returns the path below the host."""
        try:
            parsed = urllib3.util.parse_url(self.url)
        except LocationParseError as error:
            raise InvalidInputError(f"LOCKGATE_BLOB_SERVER_URL: {error}") from None
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.auth or parsed.query:
            raise InvalidInputError(
                f"LOCKGATE_BLOB_SERVER_URL: {parsed.scheme}://{parsed.netloc} is no blob server's; one looks "
                "like https://blobs.example.com:8410"
            )
        if self._ca_file is not None and not self._ca_file.is_file():
            raise InvalidInputError(f"LOCKGATE_BLOB_CA_FILE: {self._ca_file} is not there")
        if self._ca_file is not None and parsed.scheme == "http":
            raise InvalidInputError(
                f"LOCKGATE_BLOB_SERVER_URL: {parsed.scheme}://{parsed.netloc} is plain HTTP, which no "
                "LOCKGATE_BLOB_CA_FILE verifies; nothing was sent; name it with https, or unset the latter"
            )
        self._credentials()
        return parsed.path or ""

    def _refusal(self, call: str, is_read: bool, status: int, text: bytes) -> LockgateError:
        """Return the error that an answer tells of, whoever between here and the server has given it."""
        try:
            return error_of(msgspec.json.decode(text, type=Trouble))
        except msgspec.MsgspecError:
            said = f"{call} was answered with {status}, and not by a blob server"
        # A proxy says 408 or 503, too, of a request that the server had and did not answer.
        gave_up = status >= 500 or status == _TOO_LATE
        if status == _TOO_MUCH or (gave_up and is_read):
            return StoreUnavailableError(f"{said}; nothing was changed; try again later")
        if gave_up:
            return OutcomeUnknownError(f"{said}; it may have been done; look at what stands, then ask again")
        return InvalidInputError(f"{said}; nothing was changed; check LOCKGATE_BLOB_SERVER_URL")

    def _broken(self, call: str, is_read: bool, error: HTTPError) -> LockgateError:
        """Return what a broken connection means for the call."""
        said = f"{call}: {_reason(error)}"
        if self.url.startswith("http:") and any(isinstance(part, RemoteDisconnected) for part in error.args):
            said = f"{said}, as a server with TLS does: LOCKGATE_BLOB_SERVER_URL names it with https then"
        if isinstance(error, SSLError) and any(word in str(error) for word in _WRONG_TLS):
            return InvalidInputError(
                f"{said}; nothing was sent; check that LOCKGATE_BLOB_SERVER_URL says https and names the "
                "host of its certificate, and LOCKGATE_BLOB_CA_FILE who has signed that"
            )
        if isinstance(error, _NOT_SENT):
            return StoreUnavailableError(
                f"{said}; the blob server cannot be reached; nothing was done; see that it runs"
            )
        if is_read:
            return StoreUnavailableError(f"{said}; the blob server's answer broke off; try again")
        return OutcomeUnknownError(
            f"{said}; the blob server gave no answer; it may have been done; try again, or leave what nobody "
            "refers to to the sweep"
        )


def decoded(answer: urllib3.BaseHTTPResponse, kind: type[T]) -> T:
    """Return an answer's JSON.

    Raises:
        OutcomeUnknownError: It is none.
    """
    try:
        return msgspec.json.decode(answer.read(), type=kind)
    except msgspec.MsgspecError as error:
        raise OutcomeUnknownError(
            f"the blob server's answer cannot be read: {error}; is it of another version?"
        ) from None


def _reason(error: HTTPError) -> str:
    """Return what happened, without the objects and the names of pools that urllib3 puts before it."""
    inner = next((part for part in reversed(error.args) if isinstance(part, BaseException)), error)
    return str(inner).rpartition(": ")[2] or type(inner).__name__
