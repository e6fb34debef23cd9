"""A driver in a process of its own that stops where it is told, and goes on when it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from lockgate.storage_core.commit import open_job
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import Settings
from tests.driver_processes import PROCESSES

READY = "ready"
COMMITTED = "committed"
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Order:
    """What it writes, and where it stops.

    Attributes:
        pauses_at: A failpoint; or `task`: amid its one task; or `commit`: before that is called.
    """

    url: str
    name: str
    files: Mapping[str, bytes]
    settings: Mapping[str, object]
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

    def hear(self) -> str:
        """What it says next: `READY`, and in the end `COMMITTED` or the name of its error."""
        assert self._link.poll(PATIENCE_S), "the driver says nothing"
        said: str = self._link.recv()
        return said

    def go_on(self) -> None:
        self._link.send("go on")

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
        with open_job(order.url, order.name, settings=Settings(**order.settings)) as job:  # type: ignore[arg-type]
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
