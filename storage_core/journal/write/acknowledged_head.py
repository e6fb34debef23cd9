"""The newest acknowledged stamp of a SQLite journal, in a small file beside it: `journal.db-head-main`.

A database that was put back from a copy does not know what it has lost, and would issue the same stamps
again. The file beside it knows: at the next open a head that is older begins a new epoch, in safe mode.

A stamp is written here after its commit and before the caller gets it, so the file is never ahead of the
database. It is not synced: it need not survive the machine, only the processes. A missing file, or one that
cannot be written, costs this check and nothing else.
"""

from __future__ import annotations

import logging
import os
import zlib
from pathlib import Path
from typing import Final
from urllib.parse import quote

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.database.writer_lock import open_beside
from lockgate.storage_core.stamp import Stamp

LOG: Final = logging.getLogger("lockgate.journal")

_LINES: Final = 64
"""Entries take turns at the lines, so that processes that finish in another order overwrite nothing newer."""

_LINE_BYTES: Final = 128


class AcknowledgedHead:
    """The file beside one journal."""

    def __init__(self, database: Path, journal: str) -> None:
        self._database = database.resolve()  # two names of one file have one head
        self.path = self._database.with_name(f"{self._database.name}-head-{quote(journal, safe='')}")
        self._has_warned = False

    def newest(self, identity: str) -> Stamp | None:
        """Return the newest acknowledged stamp of the journal with this identity, None if it is not known."""
        try:
            # The entries of a group leave holes: only the newest one has its line written.
            lines = self.path.read_bytes().replace(b"\0", b"").split(b"\n")
        except OSError:
            return None
        return max(filter(None, (_parse(line, identity) for line in lines)), default=None)

    def record(self, identity: str, stamp: Stamp) -> None:
        """Record a stamp whose transaction is durable."""
        line = _line(identity, stamp).encode().ljust(_LINE_BYTES - 1) + b"\n"
        try:
            file = open_beside(self._database, self.path)
            try:
                os.pwrite(file, line, stamp.sequence % _LINES * _LINE_BYTES)
            finally:
                os.close(file)
        except OSError as error:
            if not self._has_warned:
                LOG.warning(
                    "journal %s: %s cannot be written (%s); entries are safe, but a copy of the database "
                    "that is put back in its place would not be noticed; make it writable for this user",
                    self._database,
                    self.path.name,
                    error.strerror,
                )
            self._has_warned = True


def _line(identity: str, stamp: Stamp) -> str:
    text = f"{identity} {stamp}"
    return f"{text} {zlib.crc32(text.encode()):08x}"


def _parse(line: bytes, identity: str) -> Stamp | None:
    """Return the stamp of a whole line with this identity, None for any other."""
    found = line.decode(errors="replace").split()
    if len(found) != 3 or found[0] != identity:
        return None
    try:
        stamp = Stamp.parse(found[1])
    except InvalidInputError:
        return None
    return stamp if _line(identity, stamp).split() == found else None
