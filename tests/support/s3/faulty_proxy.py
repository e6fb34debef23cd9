"""A proxy before an S3 server that delays, cuts and resets answers, and answers 503 itself."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

Fault = Literal["delay", "cut", "reset", "no answer", "503"]

FAULTS: Final[tuple[Fault, ...]] = ("delay", "cut", "reset", "no answer", "503")
_SLOW_DOWN: Final = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 57\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>no</Message></Error>"
)
_RESET: Final = b"\1\0\0\0\0\0\0\0"
_CHUNK_BYTES: Final = 65_536


@dataclass
class FaultyProxy:
    """One proxy.

    Attributes:
        endpoint: Its URL.
        rate: Share of the requests that get a fault.
        counts: Number of injected faults by kind.
    """

    endpoint: str
    rate: float
    counts: Counter[Fault] = field(default_factory=Counter)
    _random: random.Random = field(default_factory=lambda: random.Random(11))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self) -> tuple[Fault | None, float]:
        """Return the fault of the next request, and a number below 1 that says where it strikes."""
        with self._lock:
            where = self._random.random()
            if self._random.random() >= self.rate:
                return None, where
            fault = self._random.choice(FAULTS)
            self.counts[fault] += 1
            return fault, where


@contextmanager
def faulty_proxy(upstream: str, rate: float) -> Iterator[FaultyProxy]:
    """Run a proxy for a plain HTTP server, which serves one request after the other on each connection."""
    host, _, port = upstream.removeprefix("http://").partition(":")
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = FaultyProxy(f"http://127.0.0.1:{listening.getsockname()[1]}", rate)

    def accept() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            far = socket.create_connection((host, int(port)))
            threading.Thread(target=_serve, args=(proxy, near, far), daemon=True).start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield proxy
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listening.close()


def _serve(proxy: FaultyProxy, near: socket.socket, far: socket.socket) -> None:
    with near, far, suppress(OSError), near.makefile("rb") as requests, far.makefile("rb") as answers:
        while head := _head(requests):
            length = _length(head)
            fault, where = proxy.draw()
            if fault == "503":
                requests.read(length)
                near.sendall(_SLOW_DOWN)
                continue
            far.sendall(head)
            if b"expect: 100-continue" in head.lower():
                near.sendall(_head(answers))
            far.sendall(requests.read(length))
            answer = _head(answers)
            if not head.startswith(b"HEAD"):
                answer += answers.read(_length(answer))
            if fault == "no answer":
                return
            if fault == "delay":
                time.sleep(where / 2)
            if fault in {"cut", "reset"}:
                near.sendall(answer[: int(where * len(answer))])
                if fault == "reset":
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return
            near.sendall(answer)


def _head(stream: object) -> bytes:
    """Read the head of a message; empty if the connection has ended."""
    lines = b""
    for line in iter(stream.readline, b""):  # type: ignore[attr-defined]
        lines += line
        if line == b"\r\n":
            return lines
    return b""


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
