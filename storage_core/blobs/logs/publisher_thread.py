"""Publish growing files as logs, from a thread that runs while there are any."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.logs.log_writer import LogWriter
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable

_LOG: Final = logging.getLogger(__name__)


class LogPublisher(Forkable):
    """Publishes files while they grow. Safe to use from several threads; a fork publishes none of them."""

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
        """Start without files, which the parent publishes."""
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._writers: dict[Path, LogWriter | None] = {}
        self._ending: set[Path] = set()
        self._all_done: threading.Event | None = None

    def follow(self, path: Path) -> None:
        """Publish a file from now on; has no effect on one that is already followed or ending."""
        if path in self._writers:
            return
        with self._lock:
            self._writers.setdefault(path, None)
            self._start_thread()

    def publish(self) -> None:
        """Publish the current bytes of each file; one that fails is tried again in the next call."""
        for path in list(self._writers):
            try:
                with self._publishing:
                    self._publish(path)
            except (LockgateError, OSError) as error:
                _LOG.warning("log %s could not be published, and is published later: %s", path, error)

    def finish(self, path: Path) -> None:
        """Publish a file to its end, and stop following it.

        If that fails, the thread tries again as long as process and file exist.

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

    def _start_thread(self) -> None:
        """Start the thread unless it runs; the caller holds `_lock`."""
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
        """Finish a file later, with a new writer, because another machine may publish its own file before."""
        with self._lock:
            self._writers[path] = None
            self._ending.add(path)
            self._start_thread()

    def _drop(self, path: Path) -> None:
        with self._lock:
            self._writers.pop(path, None)
            self._ending.discard(path)
            if not self._writers and self._all_done is not None:
                self._all_done.set()
                self._all_done = None
