"""A proxy that loses its connections like a failover: clients notice it at their next request."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ForgetfulProxy:
    """A proxy that forwards bytes over the connections that it has not lost.

    Attributes:
        port: Port on 127.0.0.1.
        ways: Client socket and server socket of each connection.
        hangs: Whether it drops what a client sends, as a process that is stopped leaves it unread.
    """

    port: int
    ways: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    forgotten: set[socket.socket] = field(default_factory=set)
    hangs: bool = False

    def forget(self) -> None:
        """Close every current connection as soon as its client sends something."""
        self.forgotten.update(client for client, _ in self.ways)

    def carry(self, client: socket.socket, server: socket.socket) -> None:
        """Forward bytes in both directions until one side has ended."""
        other = {client: server, server: client}
        with suppress(OSError):
            while True:
                for sender in select.select([client, server], [], [])[0]:
                    data = sender.recv(65_536)
                    if not data or (sender is client and client in self.forgotten):
                        return hang_up(client, server)
                    if not (self.hangs and sender is client):
                        other[sender].sendall(data)
        return hang_up(client, server)


@contextmanager
def forgetful_proxy(to_port: int) -> Iterator[ForgetfulProxy]:
    """Run a proxy for a local server; every connection is closed at the end."""
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = ForgetfulProxy(listening.getsockname()[1])
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                way = (client, socket.create_connection(("127.0.0.1", to_port)))
                proxy.ways.append(way)
                threads.append(threading.Thread(target=proxy.carry, args=way))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listening.close()
        for way in proxy.ways:
            hang_up(*way)
        for thread in threads:
            thread.join()
        for client, server in proxy.ways:
            client.close()
            server.close()


def hang_up(*ends: socket.socket) -> None:
    """Shut down both directions; the sockets stay open so that their numbers are not reused."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
