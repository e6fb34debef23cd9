"""Acknowledged lengths of open files: soft rows that are written with the renewals of their leases.

They say what a member must have that lost its last bytes without a trace. Between two renewals the members
alone know; see `Volume.acknowledge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol
from weakref import WeakValueDictionary

from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.namespace.rows import File, FileState, WrittenLength
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Journal, Leases
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stamp import Stamp

_PAGE: Final = 500
"""Rows that are looked at while the journal's head is held."""


class _OpenFile(Protocol):
    written: WrittenLength | None


class WrittenLengths:
    """The acknowledged lengths of one holder's files. Safe to use from several threads.

    Args:
        leases: Renews the leases of the holder.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._files = WeakValueDictionary[str, _OpenFile]()
        self._stored: Mapping[str, WrittenLength] = {}

    def watch(self, resource: str, file: _OpenFile) -> None:
        """Store the length of an open file with each renewal in which it has changed."""
        self._files[resource] = file

    def renew(self, holder: str, held: Mapping[str, Stamp]) -> Mapping[str, str]:
        """Renew leases as `Leases.renew` does, and store the lengths that have changed with them."""
        files = {resource: self._files.get(resource) for resource in held}
        known = {
            at: file.written for at, file in files.items() if file is not None and file.written is not None
        }
        changed = {at: row for at, row in known.items() if self._stored.get(at) != row}
        lost = self._leases.renew(holder, held, changed)
        self._stored = known
        return lost


def acknowledged(reading: Reading, file: int, block: BlockId, stamp: Stamp) -> int:
    """Return how many bytes of a block all members had at this stamp, as far as the journal knows, or 0."""
    row = reading.get(WrittenLength, file)
    if row is None or row.block != block or row.stamp != stamp:
        return 0
    return row.length_bytes


def remove_stale(journal: Journal) -> None:
    """Remove the lengths of files that are closed or deleted."""
    after: tuple[int, ...] | None = None
    while True:
        with journal.reading() as reading:
            page = reading.where(WrittenLength, {}, limit=_PAGE, after=after)
        if not page:
            return
        after = page[-1].key
        with step("recover"), maintenance(journal, "soft") as (connection, _):
            rows = SqlRows(connection, journal.name)  # none of these files is opened while the head is held
            files = rows.find(File, [row.key for row in page])
            opened = {row.inode for row in files if row.state is FileState.OPEN}
            rows.write({(WrittenLength, row.key): None for row in page if row.inode not in opened})
