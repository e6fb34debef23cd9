"""The application at a port: what may be bound, TLS, and limits on what is no request yet."""

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
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lockgate.storage_core.blobs.http.messages import Trouble
from lockgate.storage_core.blobs.http.server.app import IDLE_S
from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError

HEADER_BYTES: Final = 64 * 1024
"""Of a request's line and headers."""

HEADER_S: Final = 30.0
"""For which a connection may leave a request unfinished before its body."""

KEEP_ALIVE_S: Final = 75
"""For which an idle connection is kept: longer than a client waits between two tries."""

BACKLOG: Final = 512

CONNECTIONS: Final = 1_000
"""At once: the default of `blob_server_connections`."""

FILES_A_CONNECTION: Final = 4
"""Itself, the blob's file, and what its copy to the HA store takes."""


def listen(host: str, port: int, *, may_be_reached: bool, idle_s: float = IDLE_S) -> socket.socket:
    """Return a socket that connections queue at.

    Args:
        host: Name or address to bind.
        port: 0 takes one that is free.
        may_be_reached: Whether it may be bound to more than a loopback address.
        idle_s: As of the application.

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


def allow_files(connections: int) -> None:
    """Let this process open the files that so many connections need, as far as the machine lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_A_CONNECTION * connections
    if soft < wanted and soft != resource.RLIM_INFINITY:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def http_server(
    app: FastAPI, tls: ssl.SSLContext | None = None, *, connections: int = CONNECTIONS
) -> uvicorn.Server:
    """Return a server for `app`; `run(sockets=[...])` it. A SIGTERM lets it finish what is under way.

    Args:
        app: What it serves.
        tls: None: plain HTTP.
        connections: At once; another one is told so and hung up on.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=partial(_Bounded, connections),  # type: ignore[arg-type]  # it is only called
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


def _refusal(most: int) -> bytes:
    """Return the answer to whoever comes when there are connections enough."""
    words = (
        f"this blob server has its {most} connections; nothing was done; try again, or have its operator "
        "raise LOCKGATE_BLOB_SERVER_CONNECTIONS"
    )
    told = msgspec.json.encode(Trouble("StoreUnavailableError", words))
    return (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(told), told)
    )


class _Bounded(HttpToolsProtocol):
    """A connection whose requests' headers end, in bytes and in time, if there are not too many of it."""

    def __init__(self, most: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._most = most
        self._header_bytes = 0
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.write(_refusal(self._most))
            transport.close()
        else:
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
