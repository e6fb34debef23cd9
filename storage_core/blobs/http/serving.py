"""The application at a port: what may be bound, TLS, and limits on what is no request yet."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from storage_core.blobs.http.app import IDLE_S
from storage_core.errors import AccessDeniedError, InvalidInputError

HEADER_BYTES: Final = 64 * 1024
"""Of a request's line and headers."""

HEADER_S: Final = 30.0
"""For which a connection may leave a request unfinished before its body."""

KEEP_ALIVE_S: Final = 75
"""For which an idle connection is kept: longer than a client waits between two tries."""

BACKLOG: Final = 512


def listen(host: str, port: int, *, may_be_reached: bool) -> socket.socket:
    """Return a socket that connections queue at.

    Args:
        host: Name or address to bind.
        port: 0 takes one that is free.
        may_be_reached: Whether it may be bound to more than a loopback address.

    Raises:
        AccessDeniedError: Others could reach it, and must not.
        InvalidInputError: The address cannot be bound.
    """
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not (may_be_reached or ipaddress.ip_address(str(address[0])).is_loopback):
            raise AccessDeniedError(
                f"--host {host}: without tokens everybody who reaches this address could read and delete "
                "blobs; nothing was bound; name a --token-file, or bind 127.0.0.1"
            )
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The kernel gives up a peer that takes nothing, too: closing alone waits for what is unsent.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(2 * IDLE_S * 1_000))
            bound.bind(address)
            bound.listen(BACKLOG)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise InvalidInputError(f"--host {host} --port {port}: {error.strerror}; name another") from None
    return bound


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Return what a server shows its clients, TLS 1.2 or newer.

    Args:
        certificate: In PEM, with those that it is signed by.
        key: In PEM, without a password; None: it stands in the certificate's file.

    Raises:
        InvalidInputError: They cannot be read, or do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"--tls-cert {certificate} --tls-key {key or certificate}: {error.strerror or error}; name a "
            "certificate and its key, both in PEM and without a password"
        ) from None
    return context


def http_server(app: FastAPI, tls: ssl.SSLContext | None = None) -> uvicorn.Server:
    """Return a server for `app`; `run(sockets=[...])` it. A SIGTERM lets it finish what is under way.

    Args:
        app: What it serves.
        tls: None: plain HTTP.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_Bounded,
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
    )


def _no_password() -> str:
    """Keep OpenSSL from asking a terminal."""
    return ""


class _Bounded(HttpToolsProtocol):
    """A connection whose requests' headers end: in bytes, and in time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._wait()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._wait_no_more()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("the headers are too large")  # the parser turns it into a 400, and hangs up

    def _wait(self) -> None:
        self._wait_no_more()
        self._waiting = self.loop.call_later(HEADER_S, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
