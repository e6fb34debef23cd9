"""Removal of deleted files: replicas first, then their rows, in bounded batches.

A process that dies between two batches leaves the rest to the next removal. A volume that is out of reach
keeps its blocks' rows, so the next removal tries again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockgate.storage_core.errors import NotAppliedError, ObjectNotFoundError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import BlockRecord, known_volume
from lockgate.storage_core.files.namespace.journal_blocks import remove_stale
from lockgate.storage_core.files.namespace.queries import PAGE, names_in, records
from lockgate.storage_core.files.namespace.rows import DETACHED, Block, InodeKind, VolumeState
from lockgate.storage_core.files.namespace.tree import DetachNames, RemoveBlocks
from lockgate.storage_core.files.namespace.volume_urls import read_registered
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId, is_url
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.safe_mode import refuse_in_safe_mode
from lockgate.storage_core.stamp import Stamp


class Removed(msgspec.Struct, kw_only=True):
    """What a removal has done, or would do.

    Attributes:
        files: Files and directories. Two removals at once may both count one.
        kept_blocks: Blocks with a replica on a volume that did not answer; a later removal tries again.
    """

    files: int = 0
    blocks: int = 0
    kept_blocks: int = 0


def remove_deleted(journal: Journal, volumes: Mapping[VolumeId, Volume], *, dry_run: bool = False) -> Removed:
    """Remove the blocks and names of what was deleted or cut off, and the noted lengths of closed files.

    Args:
        dry_run: Only count what is there now. What is inside deleted directories is not counted.

    Raises:
        SafeModeError: The journal is in safe mode: nothing is deleted in it.
    """
    run = _Removal(journal, volumes, dry_run)
    run.file(DETACHED)
    if not dry_run:
        remove_stale(journal)
    after: str | None = None
    while True:
        with journal.reading() as reading:
            page = names_in(reading, DETACHED, after)
        if not page:
            return run.removed
        after = page[-1].name
        for row in page:
            if row.kind is InodeKind.DIRECTORY:
                run.directory(row.inode)
            else:
                run.file(row.inode)
        if not dry_run and any(row.kind is InodeKind.DIRECTORY for row in page):
            after = None  # names of directories were added anywhere in the order


class _Removal:
    """One removal."""

    def __init__(self, journal: Journal, volumes: Mapping[VolumeId, Volume], dry_run: bool) -> None:
        self.removed = Removed()
        self._journal = journal
        self._volumes = volumes
        self._dry_run = dry_run
        self._lost = {one for one, row in read_registered(journal).items() if row.state is VolumeState.LOST}

    def directory(self, inode: int) -> None:
        """Detach the names of a directory, and remove it."""
        self.removed.files += 1
        while not self._dry_run:
            with self._journal.reading() as reading:
                names = tuple(row.name for row in names_in(reading, inode))
            self._journal.apply(DetachNames(inode=inode, names=names))
            FAILPOINTS.hit("removal.names.after")
            if len(names) < PAGE:
                return

    def file(self, inode: int) -> None:
        """Remove the blocks of a file, and with the last ones the file; `DETACHED`: those cut off."""
        after: tuple[int, ...] | None = None
        is_whole = True
        while True:
            if not self._dry_run:
                refuse_in_safe_mode(self._journal, "the removal of deleted files")
            with self._journal.reading() as reading:
                rows: Sequence[Block] = reading.where(Block, {"file": inode}, limit=PAGE, after=after)
                page = tuple(records(reading, rows))
                newest = reading.status().stamp  # no stamp of a deleted file's replica is newer
            gone = tuple(one.block for one in page if self._dry_run or self._delete(one, newest))
            removed = len(gone)
            is_whole = is_whole and len(gone) == len(page)
            is_last = len(page) < PAGE
            file = inode if is_whole and is_last else DETACHED
            if (gone or file != DETACHED) and not self._dry_run:
                FAILPOINTS.hit("removal.replicas.after")
                removed = self._journal.apply(RemoveBlocks(blocks=gone, file=file)).result
            self.removed.files += file != DETACHED
            self.removed.blocks += removed
            self.removed.kept_blocks += len(page) - len(gone)
            if is_last:
                return
            after = (page[-1].block,)

    def _delete(self, block: BlockRecord, stamp: Stamp) -> bool:
        """Delete the replicas of a block; return whether no member has one."""
        for volume in (*block.members, *block.faults):
            try:
                known_volume(self._volumes, volume).delete(block.block, stamp)
            except ObjectNotFoundError:
                if not is_url(volume):  # the volume of a job's log is deleted with the job's records
                    return False
            except (NotAppliedError, OutcomeUnknownError):
                # One with a fault or on a lost volume may never return; if it does, it is left over.
                if volume not in block.faults and volume not in self._lost:
                    return False
        return True
