"""A blob server on a real port in a thread, and a proxy that breaks connections at given points."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastapi import FastAPI

from lockgate.storage_core.blobs.http.access import AccessPolicy, allow_all
from lockgate.storage_core.blobs.http.app import MAX_BYTES, blob_app
from lockgate.storage_core.blobs.http.client import BLOB_SERVER, BlobClient
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.http.connection import Connection
from lockgate.storage_core.http.server import CONNECTIONS, IDLE_S, http_server, listen
from tests.support.commit.destination import ManualClock

PATIENCE_S = 120.0
Way = Literal["up", "down"]


@contextmanager
def served(
    server: BlobServer,
    authorise: AccessPolicy = allow_all,
    *,
    tls: ssl.SSLContext | None = None,
    max_bytes: int = MAX_BYTES,
    idle_s: float = IDLE_S,
    connections: int = CONNECTIONS,
) -> Iterator[str]:
    """Serve blobs until the block ends; yield the URL."""
    app = blob_app(server, authorise, max_bytes=max_bytes, idle_s=idle_s)
    with serving(app, tls=tls, idle_s=idle_s, connections=connections) as url:
        yield url


@contextmanager
def serving(
    app: FastAPI,
    *,
    tls: ssl.SSLContext | None = None,
    idle_s: float = IDLE_S,
    connections: int = CONNECTIONS,
) -> Iterator[str]:
    """Serve an application until the block ends; yield the URL."""
    bound = listen("127.0.0.1", 0, allow_remote=False, idle_s=idle_s)
    port = bound.getsockname()[1]
    running = http_server(app, tls, connections=connections)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]}, name="blob-server")
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        running.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@contextmanager
def client_of(
    url: str, *, token_file: Path | None = None, ca_file: Path | None = None
) -> Iterator[BlobClient]:
    """Return a client whose waits only advance a clock."""
    clock = ManualClock()
    connection = Connection(
        url,
        peer=BLOB_SERVER,
        token_file=token_file,
        ca_file=ca_file,
        timeout_s=PATIENCE_S,
        clock=clock,
    )
    with BlobClient(connection, clock=clock) as client:
        yield client


@dataclass
class Proxy:
    """A proxy that forwards bytes and disconnects at given points.

    Attributes:
        breaks: For each new connection, direction and number of bytes after which it breaks.
        damages: For each connection, the byte of the response in which one bit is flipped.
    """

    url: str
    breaks: deque[tuple[Way, int]] = field(default_factory=deque)
    damages: deque[int] = field(default_factory=deque)
    connections: int = 0


@contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    """Run a proxy for a plain HTTP server."""
    upstream = ("127.0.0.1", int(url.rpartition(":")[2]))
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(f"http://127.0.0.1:{listening.getsockname()[1]}")
    passages: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            proxy.connections += 1
            way, limit = proxy.breaks.popleft() if proxy.breaks else ("", 0)
            turn = proxy.damages.popleft() if proxy.damages else None
            far = socket.create_connection(upstream)
            up = threading.Thread(target=_pump, args=(near, far, limit if way == "up" else None, None))
            down = threading.Thread(target=_pump, args=(far, near, limit if way == "down" else None, turn))
            passages.append(threading.Thread(target=_pass, args=(near, far, up, down)))
            passages[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listening.close()
        for passage in passages:
            passage.join(PATIENCE_S)


def _pass(near: socket.socket, far: socket.socket, *pumps: threading.Thread) -> None:
    with near, far:
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()


def _pump(source: socket.socket, sink: socket.socket, stop: int | None, turn: int | None) -> None:
    """Forward bytes in one direction until the end or the given number; then close both directions."""
    passed = 0
    with suppress(OSError):
        while data := bytearray(source.recv(65_536 if stop is None else min(65_536, stop - passed))):
            if turn is not None and passed <= turn < passed + len(data):
                data[turn - passed] ^= 1
            sink.sendall(data)
            passed += len(data)
            if passed == stop:
                break
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
