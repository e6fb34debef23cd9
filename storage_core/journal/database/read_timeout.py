"""A connection to PostgreSQL that gives up a server which has fallen silent.

A server that was stopped, or that hangs, keeps its connections: the kernel acknowledges what it is sent. No
setting of the server's helps, nor one of the network's: whoever asked must look at the time.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.abc import PQGen


class ImpatientConnection(psycopg.Connection[Any]):
    """It ends itself when it waits for the server and has heard nothing for so long.

    Attributes:
        silence_s: So long, in seconds; for ever until it is set.
    """

    silence_s = float("inf")

    def wait(self, gen: PQGen[Any], *args: Any, **options: Any) -> Any:
        """Wait as every connection does, with an eye on the time.

        Raises:
            OperationalError: The server was silent for too long; the connection is closed.
        """
        return super().wait(self._with_an_eye_on_the_time(gen), *args, **options)

    def _with_an_eye_on_the_time(self, gen: PQGen[Any]) -> Generator[Any, Any, Any]:
        heard_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                heard = yield wanted  # nothing, every tenth of a second, while there is nothing to hear
                now_s = time.monotonic()
                if heard:
                    heard_s = now_s
                elif now_s - heard_s > self.silence_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has said nothing for {self.silence_s:g} s")
                wanted = gen.send(heard)
        except StopIteration as end:
            return end.value
