"""A watch on a journal's file: tells, far more cheaply than a reading, that somebody has written there."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from lockgate.storage_core.forks import FORKS, GATE, Forkable, leave_to_parent
from lockgate.storage_core.journal.database.engines import file_at


class Watch(Forkable):
    """Looks at one SQLite file, without reading from it.

    It is a hint, by which a wait may end early: where it cannot look, nothing is seen to change.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._file: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        FORKS.tell(self)

    def has_changed(self) -> bool:
        """Tell whether somebody has written since this was last asked."""
        try:
            with GATE.passage():
                self._leave_replaced()
                before, self._version = self._version, self._look()
        except sqlite3.Error:
            self.close()
            return False
        return self._version != before

    def close(self) -> None:
        """Give its connection back; the next look opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._version = None

    def before_fork(self) -> None:
        """Close what a child must not inherit."""
        self.close()

    def forked(self) -> None:
        """Leave to the parent what it was at when it was not waited for any longer."""
        leave_to_parent(self._connection)
        self._connection = self._version = None

    def _leave_replaced(self) -> None:
        """Look no more at a file that another one has taken the place of: nobody writes there."""
        file = file_at(self._path)
        if file != self._file:
            self.close()
        self._file = file

    def _look(self) -> int:
        if self._connection is None:
            address = f"{self._path.as_uri()}?mode=ro"
            self._connection = sqlite3.connect(
                address, uri=True, timeout=0, isolation_level=None, check_same_thread=False
            )
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)
