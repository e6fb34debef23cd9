"""Serve the application at a port: socket, TLS, and limits on connections and headers."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError
from lockgate.storage_core.http.problems import ErrorBody
from lockgate.storage_core.http.server.tls_server import MakeProtocol, TlsServer

IDLE_S: Final = 60.0
"""Time in which a client may send or receive next to nothing."""

HEADER_BYTES: Final = 64 * 1024
"""Maximum size of the request line and headers."""

HEADER_S: Final = 30.0
"""Time in which a connection must complete its TLS handshake and the headers of a request."""

KEEP_ALIVE_S: Final = 75
"""Time for which an idle connection is kept, longer than a client waits between two tries."""

BACKLOG: Final = 512

CONNECTIONS: Final = 1_000
"""Maximum number of open connections."""

FILES_A_CONNECTION: Final = 4
"""The connection, and for a blob its file and two for its copy to the HA store."""


def listen(host: str, port: int, *, allow_remote: bool, idle_s: float = IDLE_S) -> socket.socket:
    """Return a listening socket.

    Args:
        host: Name or address to bind.
        port: Port to bind; 0 takes a free one.
        allow_remote: Whether to bind an address that other machines can reach.
        idle_s: Time in which a client may send or receive next to nothing.

    Raises:
        AccessDeniedError: Other machines can reach the address, and `allow_remote` is false.
        InvalidInputError: The address cannot be bound.
    """
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not (allow_remote or ipaddress.ip_address(str(address[0])).is_loopback):
            raise AccessDeniedError(
                f"--host {host}: without tokens, any client that reaches this address could read and delete "
                "what it serves; nothing was bound; give a --token-file, or bind 127.0.0.1"
            )
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Ends connections to a peer that receives nothing: closing alone waits for unsent bytes.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(2 * idle_s * 1_000))
            bound.bind(address)
            bound.listen(BACKLOG)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise InvalidInputError(f"--host {host} --port {port}: {error.strerror}; name another") from None
    return bound


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Return the TLS context of a server, for TLS 1.2 or newer.

    Args:
        certificate: File of the certificate chain, in PEM.
        key: File of the key, in PEM without a password; None: the certificate's file has it.

    Raises:
        InvalidInputError: The files cannot be read, or do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"--tls-cert {certificate} --tls-key {key or certificate}: {error.strerror or error}; give a "
            "certificate and its key, both in PEM and without a password"
        ) from None
    return context


def raise_file_limit(connections: int) -> None:
    """Raise the soft limit of open files to what the connections need, at most to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_A_CONNECTION * connections
    if soft < wanted and soft != resource.RLIM_INFINITY:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def http_server(
    app: ASGIApp, tls: ssl.SSLContext | None = None, *, connections: int = CONNECTIONS, setting: str = ""
) -> uvicorn.Server:
    """Return a server for `run(sockets=[...])`. On SIGTERM it finishes the requests under way.

    Args:
        app: Application to serve.
        tls: TLS context; None: plain HTTP.
        connections: Maximum number of open connections, also before their TLS handshake; one more gets status
            503 and is closed.
        setting: Variable by which an operator raises that maximum; empty: none.
    """
    config = uvicorn.Config(
        app,
        http=partial(_BoundedProtocol, connections, setting),  # type: ignore[arg-type]  # it is only called
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    if tls is None:
        return uvicorn.Server(config)

    def protocol(server: uvicorn.Server) -> MakeProtocol:
        return lambda accepted_s, is_refused: _BoundedProtocol(
            connections,
            setting,
            accepted_s=accepted_s,
            is_refused=is_refused,
            config=config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )

    return TlsServer(config, tls, limit=connections, handshake_s=HEADER_S, protocol=protocol)


def _no_password() -> str:
    """Keep OpenSSL from prompting for a password."""
    return ""


def _too_many_connections(limit: int, setting: str) -> bytes:
    """Return the response to a connection above the limit."""
    message = f"this server has reached its limit of {limit} connections; nothing was done; try again" + (
        f", or have its operator raise {setting}" if setting else ""
    )
    body = msgspec.json.encode(ErrorBody("StoreUnavailableError", message))
    return (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


class _BoundedProtocol(HttpToolsProtocol):
    """A connection whose headers are limited in size and time; closed if there are too many connections."""

    def __init__(
        self,
        limit: int,
        setting: str,
        *arguments: Any,
        accepted_s: float | None = None,
        is_refused: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._limit = limit
        self._setting = setting
        self._accepted_s = accepted_s
        self._is_refused = is_refused
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_refused or len(self.connections) > self._limit:
            transport.write(_too_many_connections(self._limit, self._setting))
            transport.close()
        else:
            self._start_header_timer(self._accepted_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._start_header_timer()

    def on_url(self, url: bytes) -> None:
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        super().on_headers_complete()

    def _count_header_bytes(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("the headers are too large")  # the parser responds with 400 and closes

    def _start_header_timer(self, since_s: float | None = None) -> None:
        self._stop_header_timer()
        since_s = self.loop.time() if since_s is None else since_s
        self._header_timer = self.loop.call_at(since_s + HEADER_S, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
