"""A handler of `logging` whose lines survive its process: `AppendableFileHandler("/logs/service.log")`."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from lockgate import FencedError, Settings, open_files

if TYPE_CHECKING:
    from lockgate.storage_core.files.writing.writer import FileWriter


class AppendableFileHandler(logging.Handler):
    """Appends each record as a line; one whose flush returned is durable.

    If another process has taken the file over, as after a long pause of this one, it is opened again. A line
    whose flush got no answer may then be there twice. Lines wait in memory until they are durable.
    """

    def __init__(self, path: str, *, flush_every: int = 1, settings: Settings | None = None) -> None:
        """Open the file at the first record.

        Args:
            path: The file, which is created if it is missing.
            flush_every: Number of records of each flush; an error is flushed at once.
            settings: From the environment by default.
        """
        super().__init__()
        self._path = path
        self._flush_every = flush_every
        self._opened = ExitStack()
        self._files = self._opened.enter_context(open_files(settings))
        self._log: FileWriter | None = None
        self._lines: list[bytes] = []  # whose flush has not returned
        self._written = 0  # of them, by the writer that is open

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            self._lines.append(self.format(record).encode() + b"\n")
            if len(self._lines) >= self._flush_every or record.levelno >= logging.ERROR:
                self.flush()
        except Exception:  # noqa: BLE001 - logging reports it, and the program goes on
            self.handleError(record)

    def flush(self) -> None:
        """Make all records durable."""
        with self.lock or ExitStack():
            try:
                self._flush()
            except FencedError:
                self._log, self._written = None, 0
                self._flush()

    def _flush(self) -> None:
        if self._lines:
            self._log = self._log or self._open()
            for line in self._lines[self._written :]:
                self._written += 1  # also if it raises: the writer keeps the line for its next call
                self._log.write(line)
            self._log.flush()
            self._lines, self._written = [], 0

    def _open(self) -> FileWriter:
        try:
            return self._files.append(self._path)
        except FileNotFoundError:
            self._files.make_directory(self._path.rpartition("/")[0] or "/", parents=True)
            return self._files.create(self._path)

    def close(self) -> None:
        """Flush, and close the file."""
        with self._opened, suppress(FencedError):
            self.flush()
            if self._log:
                self._log.close()
        super().close()
