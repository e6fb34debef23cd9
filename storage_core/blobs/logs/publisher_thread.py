"""Files that are being written are published as logs, by a thread, for as long as there are any."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.logs.writer import LogWriter
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable

_LOG: Final = logging.getLogger(__name__)


class LogFollower(Forkable):
    """Publishes files while they grow. Safe to use from several threads; a fork follows none of them.

    Args:
        open_writer: Returns the writer of a file's log; called when the file is published for the first time.
        every_s: Returns how often; asked when a thread begins.
        clock: The machine's by default.
    """

    def __init__(
        self,
        open_writer: Callable[[Path], LogWriter],
        *,
        every_s: Callable[[], float],
        clock: Clock | None = None,
    ) -> None:
        self._open_writer = open_writer
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Follow nothing: the files are this process's parent's."""
        self._changing = threading.Lock()
        self._publishing = threading.Lock()
        self._writers: dict[Path, LogWriter | None] = {}
        self._ending: set[Path] = set()
        self._all_done: threading.Event | None = None

    def follow(self, path: Path) -> None:
        """Publish a file from now on; one that is followed already, or is ending, is followed once."""
        if path in self._writers:
            return
        with self._changing:
            self._writers.setdefault(path, None)
            self._begin()

    def publish(self) -> None:
        """Publish what each file has by now; one that cannot be is tried again the next time."""
        for path in list(self._writers):
            try:
                with self._publishing:
                    self._publish(path)
            except (LockgateError, OSError) as error:
                _LOG.warning("log %s is published later: %s", path, error)

    def finish(self, path: Path) -> None:
        """Publish the whole of a file, which grows no more, and follow it no longer.

        If that fails the thread tries it again, for as long as the process and the file live.

        Raises:
            OSError: The file cannot be read.
            LockgateError: Some of it is not published yet.
        """
        with self._publishing:
            try:
                self._finish(path)
            except (LockgateError, OSError):
                self._finish_later(path)
                raise

    def _begin(self) -> None:
        """Let a thread publish, if none does; `_changing` is held."""
        if self._all_done is None:
            self._all_done = threading.Event()
            threading.Thread(
                target=self._run, args=(self._all_done,), name="lockgate-logs", daemon=True
            ).start()

    def _run(self, all_done: threading.Event) -> None:
        every_s = self._every_s()
        while not self._clock.wait(all_done, every_s):
            self.publish()

    def _publish(self, path: Path) -> None:
        if path not in self._writers:
            return  # finished meanwhile
        if path in self._ending and not path.exists():
            _LOG.warning("log %s is not published to its end: the file is gone", path)
            self._drop(path)
        elif path in self._ending:
            self._finish(path)
        else:
            writer = self._writers[path] or self._open_writer(path)
            self._writers[path] = writer
            writer.publish()

    def _finish(self, path: Path) -> None:
        writer = self._writers.get(path) or self._open_writer(path)
        writer.publish(ends=True)
        if writer.version.number > 1:
            writer.renew()
        self._drop(path)

    def _finish_later(self, path: Path) -> None:
        """Keep a file to be finished, by a new writer: by then another machine may have published its own."""
        with self._changing:
            self._writers[path] = None
            self._ending.add(path)
            self._begin()

    def _drop(self, path: Path) -> None:
        with self._changing:
            self._writers.pop(path, None)
            self._ending.discard(path)
            if not self._writers and self._all_done is not None:
                self._all_done.set()
                self._all_done = None
