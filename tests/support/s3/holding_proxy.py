"""A proxy before an S3 server that holds a request until the test has done something."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

_LENGTH = re.compile(rb"^content-length:\s*(\d+)", re.IGNORECASE | re.MULTILINE)


@dataclass
class Held:
    """The requests of one kind: each waits in the proxy until `drop`, or the end of the block.

    Attributes:
        pattern: Matches the first line of a request, such as `POST /bucket/key?uploadId=…`.
    """

    pattern: re.Pattern[str]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: int = 0
    _dropped: int = 0
    _is_open: bool = False

    def wait(self, timeout_s: float) -> None:
        """Wait until a request of this kind waits."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._waiting, timeout_s)
        assert arrived, f"no request matched {self.pattern.pattern}"

    def drop(self) -> None:
        """Lose the requests that wait now, as if their connections broke."""
        with self._changed:
            self._dropped += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting)

    def release(self) -> None:
        """Send the requests on to the server, also those of a process that has died meanwhile."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def may_pass(self, line: str) -> bool:
        """Hold a request if it is of this kind; return whether it goes on to the server."""
        if not self.pattern.match(line):
            return True
        with self._changed:
            before = self._dropped
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open or self._dropped > before)
            self._waiting -= 1
            self._changed.notify_all()
            return self._is_open


@dataclass
class HoldingProxy:
    """One proxy.

    Attributes:
        endpoint: Its URL.
    """

    endpoint: str
    _held: list[Held] = field(default_factory=list)

    @contextmanager
    def holding(self, pattern: str) -> Iterator[Held]:
        """Hold requests of a kind until the end of the block."""
        held = Held(re.compile(pattern))
        self._held.append(held)
        try:
            yield held
        finally:
            self._held.remove(held)
            held.release()

    def may_pass(self, line: str) -> bool:
        """Hold a request as long as a test wants; return whether it goes on to the server."""
        return all(held.may_pass(line) for held in list(self._held))


@contextmanager
def holding_proxy(upstream: str) -> Iterator[HoldingProxy]:
    """Run a proxy for a plain HTTP server, whose requests all name their length."""
    host, _, port = upstream.removeprefix("http://").partition(":")
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = HoldingProxy(f"http://127.0.0.1:{listening.getsockname()[1]}")

    def accept() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            far = socket.create_connection((host, int(port)))
            threading.Thread(target=_requests, args=(proxy, near, far), daemon=True).start()
            threading.Thread(target=_answers, args=(near, far), daemon=True).start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield proxy
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listening.close()


def _requests(proxy: HoldingProxy, near: socket.socket, far: socket.socket) -> None:
    with suppress(OSError), near.makefile("rb") as requests:
        while head := _head(requests):
            if not proxy.may_pass(head.partition(b"\r\n")[0].decode("latin-1")):
                break
            # The server answers `Expect: 100-continue` before the body comes.
            far.sendall(head)
            found = _LENGTH.search(head)
            left = int(found[1]) if found else 0
            while left and (block := requests.read(min(left, 65_536))):
                far.sendall(block)
                left -= len(block)
    with suppress(OSError):
        far.shutdown(socket.SHUT_WR)


def _answers(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        with suppress(OSError):
            while block := far.recv(65_536):
                near.sendall(block)
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)


def _head(stream: Any) -> bytes:
    """Read the head of a request; empty if the connection has ended."""
    lines = b""
    for line in iter(stream.readline, b""):
        lines += line
        if line == b"\r\n":
            return lines
    return b""
