"""An S3 server that disconnects or sends unexpected bytes at a chosen point of an exchange."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

Manner = Callable[[socket.socket], bool]
"""Responds to a request on a connection, and returns whether the connection is kept."""

COMPLETED: Final = (
    b"<CompleteMultipartUploadResult><ETag>&quot;e&quot;</ETag></CompleteMultipartUploadResult>"
)


def answer(
    status: str = "200 OK",
    body: bytes = COMPLETED,
    *,
    headers: bytes = b'ETag: "e"\r\nx-amz-request-id: r\r\n',
    keeps: bool = True,
) -> Manner:
    """Return a manner that sends a complete response."""
    head = b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n" % (status.encode(), headers, len(body))
    return sends(head + body, keeps=keeps)


def refusal(status: str, code: str) -> Manner:
    return answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())


def sends(text: bytes, *, keeps: bool = False, piece: int | None = None) -> Manner:
    """Return a manner that sends exactly these bytes, in pieces of the given size if there is one."""

    def respond(connection: socket.socket) -> bool:
        for start in range(0, len(text), piece or len(text) or 1):
            connection.sendall(text[start : start + (piece or len(text))])
        return keeps

    return respond


def hangs_up(connection: socket.socket) -> bool:
    return False


def resets(connection: socket.socket) -> bool:
    """Reset the connection instead of closing it normally."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return False


class HeadOnly:
    """A connection on which a response ends with its head, as the response to a HEAD request must."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sent = b""
        self.setsockopt = connection.setsockopt

    def sendall(self, text: bytes) -> None:
        before, self._sent = self._sent, self._sent + text
        end = self._sent.rfind(b"\r\n\r\n")
        self._connection.sendall(text if end < 0 else self._sent[: end + 4][len(before) :])


def _lines(requests: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a head, none where the connection has ended."""
    while (line := requests.readline()) not in {b"", b"\r\n"}:
        yield line


class RudeServer:
    """Read complete requests, and respond to each in the next manner, by default correctly.

    Args:
        tls: Its certificate, for connections by TLS.

    Attributes:
        manners: Manners of the next responses.
        seen: Received requests: their first lines, heads and bodies.
        connections: Number of accepted connections.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.manners: list[Manner] = []
        self.seen: list[tuple[str, bytes, bytes]] = []
        self.connections = 0
        self._answering = 0
        self._changed = threading.Condition()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._tls = tls
        self.endpoint = f"http{'s' if tls else ''}://127.0.0.1:{self._socket.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._attend, args=[connection], daemon=True).start()

    def wait(self) -> None:
        """Wait until it has disconnected as configured."""
        with self._changed:
            self._changed.wait_for(lambda: not self._answering)

    def _attend(self, connection: socket.socket) -> None:
        kept = True
        if self._tls:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:  # the client does not trust the certificate
                connection.close()
                return
        while kept:
            with connection.makefile("rb") as requests:
                request = self._read(connection, requests)
            if not request:
                connection.close()
                return
            self._count(1)
            manner = self.manners.pop(0) if self.manners else answer()
            try:
                kept = manner(HeadOnly(connection) if request.startswith("HEAD") else connection)
            except OSError:
                kept = False
            if not kept:
                connection.close()
            self._count(-1)

    def _count(self, difference: int) -> None:
        with self._changed:
            self._answering += difference
            self._changed.notify_all()

    def _read(self, connection: socket.socket, requests: BinaryIO) -> str:
        try:
            first = requests.readline().decode().strip()
            head = b"".join(_lines(requests))
            headers = dict(line.lower().split(b": ", 1) for line in head.splitlines())
            if b"expect" in headers:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = requests.read(int(headers.get(b"content-length", b"0")))
        except (OSError, ValueError):
            return ""
        if first:
            self.seen.append((first, head, body))
        return first

    def close(self) -> None:
        # A thread that waits in accept is not woken by a close.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def rude_server(tls: ssl.SSLContext | None = None) -> Iterator[RudeServer]:
    server = RudeServer(tls)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()
