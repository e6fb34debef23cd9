"""A way to a server that forgets its connections, as after a failover: nobody is told until he speaks."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ForgetfulProxy:
    """Passes bytes on, over connections that it has not forgotten.

    Attributes:
        port: Of 127.0.0.1.
        ways: To the client and to the server, of each connection.
    """

    port: int
    ways: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    forgotten: set[socket.socket] = field(default_factory=set)

    def forget(self) -> None:
        """Hang up on every client of now as soon as it says something."""
        self.forgotten.update(client for client, _ in self.ways)

    def carry(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what either says until one has ended."""
        other = {client: server, server: client}
        with suppress(OSError):
            while True:
                for speaker in select.select([client, server], [], [])[0]:
                    said = speaker.recv(65_536)
                    if not said or (speaker is client and client in self.forgotten):
                        return hang_up(client, server)
                    other[speaker].sendall(said)
        return hang_up(client, server)


@contextmanager
def forgetful_proxy(to_port: int) -> Iterator[ForgetfulProxy]:
    """Stand before a server of this machine; every connection is closed before this ends."""
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
    """End both ways; the sockets stay open, so that nobody waits for another's."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
