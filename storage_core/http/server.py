"""Serve an application at a port, with uvicorn and the limits that uvicorn lacks."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError

IDLE_S: Final = 60.0
"""Time in which a client must send or receive something."""

HEAD_BYTES: Final = 64 * 1024
"""Size of a request's line and headers after which no more of them is read."""

HEAD_S: Final = 30.0
"""Time from a connection, or from the first byte of a further request, to the end of the headers."""

KEEP_ALIVE_S: Final = 75
"""Time for which an idle connection is kept, longer than a client waits between two tries."""

BACKLOG: Final = 512

CONNECTIONS: Final = 1_000
"""Number of open connections from which requests are refused."""


def listen(host: str, port: int, *, allow_remote: bool, idle_s: float = IDLE_S) -> socket.socket:
    """Return a listening socket.

    Args:
        host: Name or address to bind.
        port: Port to bind; 0 takes a free one.
        allow_remote: Whether to bind an address that other machines can reach.
        idle_s: Time in which a client must receive something.

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
            # Connections inherit it. The kernel ends one whose peer is gone or receives nothing, which would
            # otherwise keep the file of a blob open.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(idle_s * 1_000))
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
        context.load_cert_chain(certificate, key, password="")  # OpenSSL would ask at the terminal
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"--tls-cert {certificate} --tls-key {key or certificate}: {error.strerror or error}; give a "
            "certificate and its key, both in PEM and without a password"
        ) from None
    return context


def raise_file_limit() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard one: a put has up to four open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def http_server(
    app: ASGIApp, tls: ssl.SSLContext | None = None, *, connections: int = CONNECTIONS
) -> uvicorn.Server:
    """Return a server for `run(sockets=[...])`. On SIGTERM it finishes the requests under way.

    Args:
        app: Application to serve.
        tls: TLS context; None: plain HTTP.
        connections: Number of open connections from which requests are refused with status 503.
    """
    config = uvicorn.Config(
        app,
        http=_BoundedHeadProtocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=connections,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    config.ssl = tls
    return uvicorn.Server(config)


class _BoundedHeadProtocol(HttpToolsProtocol):
    """A connection that is closed if the head of a request is not complete in time, or grows too large.

    uvicorn waits for the rest of a head for ever, and its parser collects a header of any size. Both need no
    token.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def _begin_head(self) -> None:
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
