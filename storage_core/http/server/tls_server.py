"""A server whose connections count from their acceptance on, before the TLS handshake.

asyncio's own servers hand a TLS connection over when its handshake is complete. A client that never completes
one would hold a file of the server, and count towards no limit. This server accepts by itself.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import uvicorn

REFUSALS: Final = 64
"""Connections above the limit whose handshake is completed to send 503; further ones are closed at once."""

RETRY_S: Final = 1.0
"""Pause after a failed `accept`: the process has no file left, for example."""

MakeProtocol = Callable[[float, bool], asyncio.Protocol]
"""Returns the protocol of a connection: when it was accepted, and whether it is to be refused."""


class TlsServer(uvicorn.Server):
    """A server of TLS connections.

    Args:
        config: Configuration of uvicorn, without TLS.
        tls: TLS context.
        limit: Maximum number of open connections.
        handshake_s: Time for a handshake.
        protocol: Called with this server for each connection.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        tls: ssl.SSLContext,
        *,
        limit: int,
        handshake_s: float,
        protocol: Callable[[uvicorn.Server], MakeProtocol],
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._limit = limit
        self._handshake_s = handshake_s
        self._protocol = protocol(self)
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets=[])
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, abandon handshakes, and finish the requests under way."""
        ending = [*self._accepting, *self._handshakes]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except ConnectionError:  # the client is gone again
                continue
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            above = len(self.server_state.connections) + len(self._handshakes) - self._limit
            if above >= REFUSALS:
                connection.close()
                continue
            handshake = loop.create_task(self._secure(connection, is_refused=above >= 0))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _secure(self, connection: socket.socket, *, is_refused: bool) -> None:
        """Complete the handshake; its protocol then counts as a connection."""
        loop = asyncio.get_running_loop()
        protocol = self._protocol(loop.time(), is_refused)
        with suppress(OSError):  # the client is gone, too slow, or speaks no TLS
            await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
