"""A PostgreSQL connection with a read timeout.

A server process that is stopped or hangs keeps its connections, because the kernel acknowledges the packets.
No setting of the server or the network helps, so the client measures the time.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.abc import PQGen


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection that closes itself when the server sends nothing during a call.

    Attributes:
        silence_s: Timeout; unlimited until it is set.
    """

    silence_s = float("inf")

    def wait(self, gen: PQGen[Any], *args: Any, **options: Any) -> Any:
        """Wait for the server with the timeout.

        Raises:
            OperationalError: The server sent nothing for too long; the connection is closed.
        """
        return super().wait(self._with_timeout(gen), *args, **options)

    def _with_timeout(self, gen: PQGen[Any]) -> Generator[Any, Any, Any]:
        received_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted  # every tenth of a second, empty while nothing has arrived
                now_s = time.monotonic()
                if ready:
                    received_s = now_s
                elif now_s - received_s > self.silence_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has sent nothing for {self.silence_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
