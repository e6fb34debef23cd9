"""The blocks of open files in the journal, and what all members have, as the holder of a lease has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from lockgate.storage_core.failpoints import step
from lockgate.storage_core.files.blocks import BlockRecord, Opened
from lockgate.storage_core.files.namespace.file_blocks import (
    AddBlock,
    CloseFile,
    Commit,
    CommitBlock,
    StampBlock,
)
from lockgate.storage_core.files.namespace.queries import acknowledged, blocks_of
from lockgate.storage_core.files.namespace.queries import block as block_of
from lockgate.storage_core.files.namespace.rows import File, FileState, WrittenLength
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Leases, Mutation, Refused
from lockgate.storage_core.journal.database.row_access import SqlRows
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.journal import maintenance
from lockgate.storage_core.stamp import Stamp


class JournalBlocks:
    """The blocks of one file, as the holder of its lease changes them.

    All changes raise `FencedError` once another holder has the lease, and `OutcomeUnknownError` where the
    journal gave no answer.

    Attributes:
        resource: Resource of the file's lease.
        lease: Stamp of the lease.
        written: What `note_acknowledged` was given last.
    """

    def __init__(
        self, journal: Journal, opened: Opened, choose: Callable[[], tuple[VolumeId, ...]] = tuple
    ) -> None:
        self.resource = file_resource(opened.inode)
        self.lease = opened.stamp
        self.written: WrittenLength | None = None
        self._journal = journal
        self._file = opened.inode
        self._opened = opened
        self._choose = choose
        self._asked: Mutation | None = None

    def end(self) -> Opened:
        """Return the end of the file as the opening has found it."""
        return self._opened

    def records(self) -> tuple[BlockRecord, ...]:
        """Return the file's blocks in order, as they are now."""
        with self._journal.reading() as reading:
            return blocks_of(reading, self._file)

    def record(self, block: BlockId) -> BlockRecord | None:
        """Return a block as it is now, None if it was removed."""
        with self._journal.reading() as reading:
            return block_of(reading, block)

    def add(self, last: BlockRecord | None = None) -> BlockRecord:
        """Add an empty block at the end of the file; after an error the next call repeats that request."""
        if self._asked is None or not isinstance(self._asked.op, AddBlock):
            sealed, members = None if last is None else _commit_of(last), self._choose()
            self._asked = Mutation(
                op=AddBlock(resource=self.resource, stamp=self.lease, members=members, last=sealed)
            )
        added: BlockRecord = self._ask(self._asked.op)
        return added

    def acknowledged(self, block: BlockId, stamp: Stamp) -> int:
        """Return how many bytes of a block all members have, as the last renewals say; 0 where not known."""
        with self._journal.reading() as reading:
            return acknowledged(reading, self._file, block, stamp)

    def note_acknowledged(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        """Note that all members have these bytes; it is stored with the next renewal of the lease."""
        self.written = WrittenLength(
            inode=self._file,
            block=block,
            epoch=stamp.epoch,
            sequence=stamp.sequence,
            length_bytes=length_bytes,
        )

    def stamp(self, block: BlockId, target_bytes: int | None) -> BlockRecord:
        """Begin a reseal: a pending stamp, and the target of a truncate unless one stands.

        Returns the block with both. The first stamp is that of the opening, if it has stamped the block.
        """
        last = self._opened.last
        self._opened = msgspec.structs.replace(self._opened, last=None)
        if last is not None and last.block == block and last.pending == self.lease and target_bytes is None:
            return last
        op = StampBlock(resource=self.resource, stamp=self.lease, block=block, target_bytes=target_bytes)
        stamped: BlockRecord = self._journal.apply(op).result
        return stamped

    def commit(self, wanted: BlockRecord) -> BlockRecord:
        """Store length, members and state of a block: compare and swap on its newest stamp."""
        last = _commit_of(wanted)
        op = CommitBlock(resource=self.resource, stamp=self.lease, last=last, state=wanted.state)
        committed: BlockRecord = self._journal.apply(op).result
        return committed

    def close(self, last: BlockRecord | None = None) -> None:
        """Close the file, with a last block to be sealed; after an error the next call repeats it."""
        sealed = None if last is None else _commit_of(last)
        self._ask(CloseFile(resource=self.resource, stamp=self.lease, last=sealed))

    def _ask(self, op: Op) -> Any:
        """Write an entry; if its answer was lost, an equal one is the same request."""
        if self._asked is None or self._asked.op != op:
            self._asked = Mutation(op=op)
        (outcome,) = self._journal.write([self._asked])
        self._asked = None
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome.result


def _commit_of(last: BlockRecord) -> Commit:
    return Commit(last.block, last.stamp, last.length_bytes, last.members)


_PAGE: Final = 500
"""Rows that are looked at while the journal's head is held."""


class WrittenLengths:
    """The acknowledged lengths of one holder's files. Safe to use from several threads."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._files = WeakValueDictionary[str, JournalBlocks]()
        self._stored: Mapping[str, WrittenLength] = {}

    def watch(self, file: JournalBlocks) -> None:
        """Store the length of an open file with each renewal in which it has changed."""
        self._files[file.resource] = file

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
