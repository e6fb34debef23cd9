"""One request and its answer over a connection that stands.

Connections are botocore's: its session opens them, with its timeouts, certificates and proxies, and urllib3's
pools keep them. Where one stands, a request goes over it in one piece, and a plain head of its answer is read
in one piece. Whatever is not plain is left to botocore's session, and to `http.client`.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from http import HTTPStatus
from http.client import BadStatusLine, HTTPException, HTTPMessage, HTTPResponse
from typing import TYPE_CHECKING, Any, Final

import urllib3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError, SSLError
from urllib3 import HTTPHeaderDict
from urllib3.exceptions import ClosedPoolError

from lockgate.storage_core.stores.s3.fast_path.compatibility import warn
from lockgate.storage_core.stores.s3.fast_path.request_template import LeanRequest, text

if TYPE_CHECKING:
    from botocore.httpsession import ProxyConfiguration, URLLib3Session
    from urllib3 import PoolManager
    from urllib3.connection import HTTPConnection
    from urllib3.connectionpool import HTTPConnectionPool

_TOGETHER_BYTES: Final = 64 * 2**10
"""Up to this size a body is copied behind its head: a packet less is worth more than the copy."""

_CHUNK_BYTES: Final = 64 * 2**10

_PLAIN_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5]\d\d) ([ -~]*)\r\n((?:[-!#-'*+.0-9A-Z^_`a-z|~]+:[\t -~]*\r\n)*)\r\n"
)
_FOLD: Final = re.compile(r"[ \t]*\r?\n[ \t]+")
_WITHOUT_BODY: Final = frozenset({204, 304})
_SENDING_MAY_END: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EPROTOTYPE})
"""A server may answer and close before it has read everything: then its answer is still there to be read."""


class LastAnswer(HTTPResponse):
    """An answer that is not one that only announces it: `http.client` itself passes over 100 alone."""

    def begin(self) -> None:
        """Read the head; see `HTTPResponse.begin`."""
        super().begin()
        while self.status < HTTPStatus.OK:
            if self.status == HTTPStatus.SWITCHING_PROTOCOLS:
                raise BadStatusLine("101, but the request named no other protocol")
            self.headers = self.msg = None  # type: ignore[assignment] # as before the first
            super().begin()


class Answer(LastAnswer):
    """An answer whose head is read at once, where it came at once and is plain."""

    _method: str | None

    def begin(self) -> None:
        """Read the head; see `HTTPResponse.begin`, which reads all others."""
        come = self.fp.peek()
        head = _PLAIN_HEAD.match(come)
        if head is None or not self._understood(head):
            super().begin()
            return
        self.fp.read(head.end())
        if len(come) - head.end() > (self.length or 0):
            # Bytes behind it belong to no answer: the next request uses another connection.
            self.will_close = True

    def unfolded(self) -> list[tuple[str, str]]:
        """Return the headers, each in one line."""
        return [(name, _FOLD.sub(" ", value) if "\n" in value else value) for name, value in self.msg.items()]

    def _understood(self, head: re.Match[bytes]) -> bool:
        message, first = HTTPMessage(), dict[str, str]()
        for line in head[3].decode("ascii").split("\r\n")[:-1]:
            name, _, value = line.partition(":")
            value = value.lstrip(" \t")
            message.set_raw(name, value)
            first.setdefault(name.lower(), value)
        status, length = int(head[1]), first.get("content-length", "")
        bodiless = status in _WITHOUT_BODY or self._method == "HEAD"
        if "transfer-encoding" in first or not (bodiless or length.isdigit()):
            return False
        self.headers = self.msg = message
        self.version = 11
        self.code = self.status = status
        self.reason = head[2].decode("ascii").strip()
        self.chunked = False
        self.length = 0 if bodiless else int(length)
        self.will_close = "close" in first.get("connection", "").lower()
        return True


class ReadAnswer(AWSResponse):
    """An answer whose body is read, however short it was cut: what that means is for its parser to say."""

    def __init__(self, answer: Answer, url: str) -> None:
        super().__init__(url, answer.status, {}, answer)  # type: ignore[arg-type] # copies them, name by name
        self.headers: Any = HTTPHeaderDict(answer.unfolded())
        self._content = b"".join(iter(lambda: answer.read(_CHUNK_BYTES), b""))


class Wire:
    """Sends requests over connections that stand; safe to use from several threads.

    Args:
        session: Opens connections, and sends what is not plain.
        read_timeout_s: How long the next bytes of an answer may take.

    Raises:
        AttributeError: This version of botocore keeps its connections elsewhere.
    """

    def __init__(self, session: URLLib3Session, read_timeout_s: float) -> None:
        inside: Any = session
        self._session = session
        self._manager: PoolManager = inside._manager  # noqa: SLF001 - the pools that botocore fills
        # An interim answer that was taken for the last would leave that to the next call of the connection.
        self._manager.pool_classes_by_scheme = {
            scheme: _reading_last_answers(pool)
            for scheme, pool in self._manager.pool_classes_by_scheme.items()
        }
        self._proxies: ProxyConfiguration = inside._proxy_config  # noqa: SLF001 - as botocore asks it
        self._read_timeout_s = read_timeout_s
        self._pools: dict[str, HTTPConnectionPool | None] = {}

    def send(self, request: LeanRequest) -> AWSResponse:
        """Send a request and return its answer, as `URLLib3Session.send` does, with the same exceptions."""
        standing = None if "Expect" in request.headers else self._standing(request)
        if standing is None:
            return self._session.send(request)
        pool, connection = standing
        answer, done = None, False
        try:
            connection.sock.settimeout(self._read_timeout_s)
            answer = _exchanged(connection.sock, request)
            if answer.will_close:
                connection.close()
            if request.stream_output:
                said = _left_to_read(answer, request, pool, connection)
                done = True
            else:
                said = ReadAnswer(answer, request.url)
                # Before it is given back: from then on it is another's, whatever interrupts this thread.
                done = True
                pool._put_conn(connection)  # noqa: SLF001 - as urllib3's own answers do once they are read
        except TimeoutError as fault:
            raise ReadTimeoutError(endpoint_url=request.url, error=fault) from fault
        except ssl.SSLError as fault:
            raise SSLError(endpoint_url=request.url, error=fault) from fault
        except (HTTPException, OSError) as fault:
            raise ConnectionClosedError(endpoint_url=request.url, error=fault, request=request) from fault
        finally:
            if not done:
                if answer is not None:
                    answer.close()
                connection.close()
        return said

    def _standing(self, request: LeanRequest) -> tuple[HTTPConnectionPool, HTTPConnection] | None:
        """Take a connection that stands, if pools are as they are known here; nothing has been sent yet."""
        try:
            return self._taken(request)
        except (AttributeError, TypeError) as fault:
            warn(str(fault))
            return None

    def _taken(self, request: LeanRequest) -> tuple[HTTPConnectionPool, HTTPConnection] | None:
        """Take a connection on which nothing has come since its last answer: not even its end."""
        pool = self._pool(request)
        if pool is None:
            return None
        try:
            connection: Any = pool._get_conn()  # noqa: SLF001 - `urlopen` takes its connections so
        except ClosedPoolError:
            # The manager has let go of it for others that were used more: botocore's session makes another.
            self._pools.pop(request.origin, None)
            return None
        if connection.is_closed:
            pool._put_conn(connection)  # noqa: SLF001 - for botocore's session to open
            return None
        return pool, connection

    def _pool(self, request: LeanRequest) -> HTTPConnectionPool | None:
        try:
            return self._pools[request.origin]
        except KeyError:
            proxied = self._proxies.proxy_url_for(request.url)
            pool = None if proxied else self._manager.connection_from_url(request.url)
            self._pools[request.origin] = pool
            return pool


def _reading_last_answers(pool: Any) -> Any:
    connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": LastAnswer})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


def _exchanged(connection: socket.socket, request: LeanRequest) -> Answer:
    """Send a request, and read the head of its answer."""
    lines = [
        f"{request.method} {request.target} HTTP/1.1\r\nHost: {request.host}\r\nAccept-Encoding: identity"
    ]
    lines += [f"{name}: {text(value)}" for name, value in request.headers.items()]
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    cut = False
    try:
        if len(request.body) <= _TOGETHER_BYTES:
            connection.sendall(head + request.body)
        else:
            connection.sendall(head)
            connection.sendall(request.body)
    except OSError as fault:
        if fault.errno not in _SENDING_MAY_END:
            raise
        cut = True
    answer = Answer(connection, method=request.method)
    try:
        answer.begin()
        answer.will_close = answer.will_close or cut
    except BaseException:
        answer.close()
        raise
    return answer


def _left_to_read(
    answer: Answer, request: LeanRequest, pool: HTTPConnectionPool, connection: HTTPConnection
) -> AWSResponse:
    """Return an answer that gives its connection back to the pool once its body has been read."""
    headers: Any = HTTPHeaderDict(answer.unfolded())
    raw = urllib3.HTTPResponse(
        body=answer,
        headers=headers,
        status=answer.status,
        version=answer.version,
        reason=answer.reason,
        preload_content=False,
        decode_content=False,
        original_response=answer,
        pool=pool,
        connection=connection,
        enforce_content_length=False,
        request_method=request.method,
        request_url=request.target,
    )
    said = AWSResponse(request.url, answer.status, {}, raw)  # type: ignore[arg-type] # as above
    said.headers = headers
    return said
