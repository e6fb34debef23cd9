"""A driver in its own process that pauses at a given point and continues on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import Settings
from tests.support.processes.drivers import PROCESSES

READY = "ready"
COMMITTED = "committed"
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Order:
    """The data that it writes, and the point at which it pauses.

    Attributes:
        pauses_at: A failpoint, or `task` (during its only task), or `commit` (before the commit).
    """

    url: str
    name: str
    files: Mapping[str, bytes]
    settings: Settings
    pauses_at: str = "commit"


class PausedDriver:
    """The process, from outside."""

    def __init__(self, order: Order) -> None:
        self._link, theirs = PROCESSES.Pipe()
        self.process: ForkServerProcess = PROCESSES.Process(target=_drive, args=(order, theirs))
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def next_line(self) -> str:
        """Return its next line: `READY`, and finally `COMMITTED` or the name of its error."""
        assert self._link.poll(PATIENCE_S), "the driver sent nothing"
        line: str = self._link.recv()
        return line

    def resume(self) -> None:
        self._link.send("resume")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._link.close()


def _drive(order: Order, link: Connection) -> None:
    def pause(point: str) -> None:
        if point == order.pauses_at:
            FAILPOINTS.observer = None
            link.send(READY)
            link.recv()

    FAILPOINTS.observer = pause
    try:
        with open_job(order.url, order.name, settings=order.settings) as job:  # type: ignore[arg-type]
            with job.attempt("task-0") as attempt:
                for path, data in order.files.items():
                    with attempt.open(path) as file:
                        file.write(data)
                pause("task")
            pause("commit")
            job.commit()
    except LockgateError as error:
        link.send(type(error).__name__)
    else:
        link.send(COMMITTED)
