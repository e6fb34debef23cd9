"""The blocks of one file in the journal, as the holder of its lease changes them."""

from __future__ import annotations

from collections.abc import Callable

from lockgate.storage_core.files.blocks import BlockRecord, FileEnd
from lockgate.storage_core.files.namespace.file_blocks import AddBlock, Commit, CommitBlock, StampBlock
from lockgate.storage_core.files.namespace.open_files import CloseFile
from lockgate.storage_core.files.namespace.queries import block as block_of
from lockgate.storage_core.files.namespace.queries import blocks_of
from lockgate.storage_core.files.namespace.rows import WrittenLength
from lockgate.storage_core.files.namespace.written_lengths import acknowledged
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Mutation, Refused
from lockgate.storage_core.stamp import Stamp


class JournalBlocks:
    """`Blocks` of one file.

    Attributes:
        resource: Resource of the file's lease.
        lease: Stamp of the lease.
        written: What `note_acknowledged` was given last.

    Args:
        journal: The journal.
        file: Inode of the file.
        lease: Stamp of its lease.
        choose: Returns the members of a new block.
    """

    def __init__(
        self, journal: Journal, file: int, lease: Stamp, choose: Callable[[], tuple[VolumeId, ...]]
    ) -> None:
        self._journal = journal
        self._file = file
        self.lease = lease
        self._choose = choose
        self.written: WrittenLength | None = None
        self._adding: Mutation | None = None
        self.resource = file_resource(file)

    def end(self) -> FileEnd:
        """Return the end of the file, as it was opened."""
        records = self.records()
        before = sum(record.length_bytes for record in records[:-1])
        return FileEnd(before, records[-1] if records else None)

    def records(self) -> tuple[BlockRecord, ...]:
        """Return the file's blocks in order, as they are now."""
        with self._journal.reading() as reading:
            return blocks_of(reading, self._file)

    def record(self, block: BlockId) -> BlockRecord:
        """Return a block as it is now."""
        with self._journal.reading() as reading:
            return block_of(reading, block)

    def add(self) -> BlockRecord:
        """Add an empty block at the end of the file; after an error the next call asks for the same one."""
        if self._adding is None:
            op = AddBlock(resource=self.resource, stamp=self.lease, members=self._choose())
            self._adding = Mutation(op=op)
        (outcome,) = self._journal.write([self._adding])
        self._adding = None
        if isinstance(outcome, Refused):
            raise outcome.error
        added: BlockRecord = outcome.result
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
        """Begin a reseal: a pending stamp, and the target of a truncate unless one stands."""
        op = StampBlock(resource=self.resource, stamp=self.lease, block=block, target_bytes=target_bytes)
        stamped: BlockRecord = self._journal.apply(op).result
        return stamped

    def commit(
        self,
        block: BlockId,
        stamp: Stamp,
        *,
        length_bytes: int,
        members: tuple[VolumeId, ...],
        state: ReplicaState,
    ) -> BlockRecord:
        """Commit a reseal or a close."""
        op = CommitBlock(
            resource=self.resource,
            stamp=self.lease,
            block=block,
            generation=stamp,
            length_bytes=length_bytes,
            members=members,
            state="sealed" if state is ReplicaState.SEALED else "writing",
        )
        committed: BlockRecord = self._journal.apply(op).result
        return committed

    def close(self, last: BlockRecord | None = None) -> None:
        """Close the file, whose blocks are sealed, and end its lease; with `last` in the same entry."""
        commit = None
        if last is not None:
            commit = Commit(
                block=last.block,
                generation=last.stamp,
                length_bytes=last.length_bytes,
                members=last.members,
            )
        self._journal.apply(CloseFile(resource=self.resource, stamp=self.lease, last=commit))
