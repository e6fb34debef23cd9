"""Appendable files: append, flush, truncate, rename, delete, follow.

    files = Files(journal, volumes, settings)
    with files.create("/logs/a.log") as log:
        log.write(b"begun")
        log.flush()                      # durable on every member, and visible to readers
    files.open("/logs/a.log").read()

Source: docs/internals/files.md.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Literal

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidInputError,
    LeaseHeldError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.blocks import Opened, known_volume, naming
from lockgate.storage_core.files.file_recovery import (
    FileRecovery,
    RecoveredFile,
    closing,
    give_back,
    settle,
)
from lockgate.storage_core.files.namespace import queries
from lockgate.storage_core.files.namespace.file_blocks import OpenFile
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks, WrittenLengths
from lockgate.storage_core.files.namespace.queries import FileStatus
from lockgate.storage_core.files.namespace.tree import Delete, MakeDirectory, Rename
from lockgate.storage_core.files.namespace.tree_paths import parse_path, shown
from lockgate.storage_core.files.namespace.volume_urls import read_registered, register_members
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.removal import Removed, remove_deleted
from lockgate.storage_core.files.replicas.upkeep import ReplicaUpkeep
from lockgate.storage_core.files.reseal import reseal
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId, is_url
from lockgate.storage_core.files.volumes.replica import ReplicaState
from lockgate.storage_core.files.writing.writer import BLOCK_BYTES, REOPENED_BYTES, FileWriter
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Leases, Mutation, Refused
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.read.snapshot_read import Reads
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp


class Files:
    """The appendable files of one journal.

    Each call raises `PathNotFoundError` for a path that does not exist, `InvalidInputError` for what is none.

    Attributes:
        reads: Where listings and readers read.
        renewer: Renews the leases of this process.
        recovery: Recovers files whose writers have ended.
        upkeep: Reports, verifies, copies and deletes replicas.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        settings: Settings,
        *,
        reads: Client | None = None,
        members: Callable[[], tuple[VolumeId, ...]] | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Use the files of a journal; a volume is registered when it becomes a member.

        Args:
            settings: Uses the limits of leases and `files_replicas`.
            reads: Client for listings, readers and reports; by default they are served by the primary.
            members: Returns the members of a new block; by default some of all volumes.
            block_bytes: Length of a full block.
        """
        self._journal = journal
        self.reads: Reads = reads or journal
        self._refresh = reads.sync if reads else lambda: None
        self._volumes = volumes
        self._block_bytes = block_bytes
        self._soft_s = min(settings.lease_soft_s, settings.lease_hard_s)
        self._hard_s = settings.lease_hard_s
        self._replicas = settings.files_replicas
        self._leases = Leases(journal)
        self._written = WrittenLengths(self._leases)
        self.renewer = Renewer(self._written.renew, every_s=settings.lease_renew_s, clock=journal.clock)
        self.recovery = FileRecovery(journal, volumes, self.renewer, self._soft_s, self._hard_s)
        self.upkeep = ReplicaUpkeep(journal, volumes, settings, reads)
        self._members = members or self._some
        self._registered: set[VolumeId] = set()

    @property
    def mounts(self) -> int:
        """Version of the mount table under which names are made; 0: without any."""
        return 0

    def journal_of(self, directory: str) -> Journal:  # noqa: ARG002 - of an overlay
        """Return the journal in which new files in a directory are made."""
        return self._journal

    def now_s(self) -> float:
        """Return the time by the journal's clock, in seconds since the epoch."""
        return self.reads.read(lambda reading: reading.now_s())

    def create(self, path: str, *, members: Sequence[VolumeId] | None = None) -> FileWriter:
        """Create a file and return its writer.

        Args:
            members: Volumes of its blocks, registered ones or URLs; by default chosen for each block.

        Raises:
            PathExistsError: The path exists.
            PathNotFoundError: Its directory does not exist.
        """
        return self._writer(path, "create", self._members if members is None else lambda: tuple(members))

    def append(self, path: str) -> FileWriter:
        """Open a file at its end. One whose writer's lease has lapsed is recovered first.

        A lease that is overdue is waited for, as by `recover`: for its limit at most.

        Raises:
            LeaseHeldError: Another writer has it, or one that ended less than the lease's limit ago.
            StoreUnavailableError: Too few members of its last block answered.
        """
        return self._writer(path, "append", self._members)

    def open(self, path: str) -> Reader:
        """Return a reader of a file; it follows a file that is being written."""
        inode, records = self.reads.read(lambda reading: queries.named_file(reading, path))
        return Reader(
            lambda: self.reads.read(lambda reading: queries.whole_file(reading, inode)),
            self._volumes,
            records,
            path=path,
            clock=self._journal.clock,
            refresh=self._refresh,
        )

    def truncate(self, path: str, length_bytes: int) -> None:
        """Cut a closed file. The same length changes nothing; a crash leaves the old length or the new one.

        Raises:
            InvalidInputError: The length is negative, or greater than the file's.
            LeaseHeldError: A writer has the file.
            StoreUnavailableError: Too few members answered. The file is cut by the next call, `append` or
                recovery.
        """
        try:
            length_bytes = int(index(length_bytes))  # an entry with another number could not be read back
        except TypeError:
            raise InvalidInputError(
                f"{path}: a length of {length_bytes!r} is no number of bytes; nothing was changed"
            ) from None
        Files.recover(self, path)
        with self._journal.reading() as reading:
            found = queries.status(reading, path)
        _check_length(path, length_bytes, found.length_bytes)
        blocks = self._open(path, "append", self._members)
        with closing(path, blocks, self.renewer, self._leases):
            records = settle(blocks, self._volumes)
            _check_length(path, length_bytes, sum(record.length_bytes for record in records))
            start = 0
            for record in records:
                end = start + record.length_bytes
                if length_bytes <= end and (length_bytes < end or record is not records[-1]):
                    FAILPOINTS.hit("truncate.reseal.before")
                    target, sealed = length_bytes - start, ReplicaState.SEALED
                    reseal(blocks, self._volumes, record.block, ends=sealed, target_bytes=target)
                    break
                start = end
            FAILPOINTS.hit("truncate.close.before")
            blocks.close()

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        """Make a directory.

        Args:
            parents: Also make the directories above it; one that exists is no error.

        Raises:
            PathExistsError: It exists.
            PathNotFoundError: The directory above it does not exist.
        """
        names = parse_path(path)  # before the journal, whose message would be about databases
        for depth in range(1 if parents else len(names), len(names) + 1):
            try:
                self._journal.apply(MakeDirectory(path=shown(names[:depth]), mounts=self.mounts))
            except AlreadyExistsError:
                with self._journal.reading() as reading:
                    if not parents or not queries.status(reading, shown(names[:depth])).is_directory:
                        raise

    def rename(self, path: str, target: str, *, replace: bool = False) -> None:
        """Move a file or a directory in one entry. An open file keeps its writer.

        Args:
            replace: A file at the target is deleted by the same entry, as `delete` does.

        Raises:
            PathNotFoundError: The path, or the directory of the target, does not exist.
            PathExistsError: The target exists, and is not to be replaced or no file.
            PathConflictError: The target is inside the path.
        """
        parse_path(path), parse_path(target)
        op = Rename(path=path, target=target, replaces=bool(replace), mounts=self.mounts)
        written = self._journal.apply(op)
        self.fence_deleted(written.result, written.stamp)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or a directory in one entry; `remove_deleted` removes its blocks later.

        The writer of an open file is fenced at the members that answer; at another one, at its next renewal.

        Raises:
            DirectoryNotEmptyError: The directory is not empty, and `recursive` is False.
        """
        parse_path(path)
        written = self._journal.apply(Delete(path=path, recursive=bool(recursive), mounts=self.mounts))
        FAILPOINTS.hit("delete.entry.after")
        self.fence_deleted(written.result, written.stamp)

    def delete_closed(self, found: Iterable[tuple[str, FileStatus]]) -> int:
        """Delete files that were closed, by path and status, in one transaction; return their number.

        One that was changed since, or whose path names another file now, is left.
        """
        ops = (
            Delete(path=path, inode=status.inode, mounts=self.mounts, changed_s=status.changed_s)
            for path, status in found
        )
        outcomes = self._journal.write([Mutation(op=op) for op in ops])
        return sum(not isinstance(outcome, Refused) for outcome in outcomes)

    def list(self, path: str = "/", after: str | None = None) -> list[FileStatus]:
        """Return a page of the names in a directory, in order.

        Args:
            after: Last name of the page before.
        """
        return self.reads.read(lambda reading: queries.listing(reading, path, after))

    def status(self, path: str) -> FileStatus:
        """Return what a path names."""
        return self.reads.read(lambda reading: queries.status(reading, path))

    def is_open(self, found: FileStatus) -> bool:
        """Return whether a file, whatever its path now, has a writer or one that ended without closing it.

        Raises:
            PathNotFoundError: It was deleted.
        """
        return self.reads.read(lambda reading: queries.is_open(reading, found.inode))

    def readable_bytes(self, path: str) -> int | None:
        """Return how many bytes of a file can be read now: those that were flushed, also while it is written.

        None if the volumes of its last block do not tell.
        """
        try:
            with self.open(path) as reader:
                return reader.seek(0, io.SEEK_END)
        except StoreUnavailableError:
            return None

    def recover(self, path: str, *, accept_loss: bool = False) -> int | None:
        """Recover a file by its path; see `FileRecovery.recover`."""
        with self._journal.reading() as reading:
            inode = queries.file_at(reading, path)
        return self.recovery.recover(inode, accept_loss=accept_loss)

    def recover_lapsed(
        self, *, note: Callable[[RecoveredFile], None] = lambda _: None
    ) -> Sequence[RecoveredFile]:
        """Recover all files whose leases have lapsed; see `FileRecovery.recover_lapsed`."""
        return self.recovery.recover_lapsed(note=note)

    def remove_deleted(self, *, dry_run: bool = False) -> Removed:
        """Remove the blocks of what was deleted; see `removal.remove_deleted`.

        Raises:
            SafeModeError: The journal is in safe mode, or too few blocks have reported.
        """
        if not dry_run:
            self.upkeep.wait_for_reports("the removal of deleted files")
        return remove_deleted(self._journal, self._volumes, dry_run=dry_run)

    def close(self) -> None:
        """Stop renewing; files that are open are left to recovery."""
        self.renewer.close()

    def _open(
        self,
        path: str,
        mode: Literal["create", "append"],
        members: Callable[[], tuple[VolumeId, ...]],
        block_bytes: int = 0,
    ) -> JournalBlocks:
        parse_path(path)
        op = OpenFile(
            path=path,
            mode=mode,
            holder=self.renewer.holder,
            soft_s=self._soft_s,
            hard_s=self._hard_s,
            members=self._first(members) if mode == "create" else (),
            block_bytes=block_bytes,
            mounts=self.mounts,
        )
        began_s = self._journal.clock.monotonic_s()
        try:
            opened: Opened = self._journal.apply(op).result
        except LeaseHeldError:
            Files.recover(self, path)
            opened = self._journal.apply(op).result
        self.renewer.keep(file_resource(opened.inode), opened.stamp, since_s=began_s)
        return JournalBlocks(self._journal, opened, partial(self._choose, members))

    def _writer(
        self, path: str, mode: Literal["create", "append"], members: Callable[[], tuple[VolumeId, ...]]
    ) -> FileWriter:
        reopened = min(self._block_bytes, REOPENED_BYTES)
        blocks = self._open(path, mode, members, reopened)
        try:
            self._written.watch(blocks)
            with naming(path):
                return FileWriter(
                    blocks,
                    self._volumes,
                    path=path,
                    block_bytes=self._block_bytes,
                    check=partial(self.renewer.check, blocks.resource, math.inf),
                    drop=partial(self.renewer.drop, blocks.resource, blocks.lease),
                )
        except BaseException:
            self.renewer.drop(blocks.resource, blocks.lease)
            give_back(self._leases, blocks.resource, blocks.lease)
            raise

    def _first(self, choose: Callable[[], tuple[VolumeId, ...]]) -> tuple[VolumeId, ...]:
        """Return the members of a created file's first block; none leaves the block to the first write."""
        try:
            members = choose()
        except StoreUnavailableError:
            return ()
        if self._unregistered(members):
            self._registered.update(read_registered(self._journal))
        return () if self._unregistered(members) else members  # a refused creation writes no entry

    def _choose(self, choose: Callable[[], tuple[VolumeId, ...]]) -> tuple[VolumeId, ...]:
        members = choose()
        if new := self._unregistered(members):
            register_members(self._journal, sorted(new))
            self._registered |= new
        return members

    def _unregistered(self, members: Sequence[VolumeId]) -> set[VolumeId]:
        return {one for one in members if not is_url(one)} - self._registered

    def _some(self) -> tuple[VolumeId, ...]:
        if not self._volumes:
            raise StoreUnavailableError("no volume of appendable files can be reached; nothing was changed")
        return tuple(random.sample(sorted(self._volumes), min(self._replicas, len(self._volumes))))

    def fence_deleted(self, inode: int | None, stamp: Stamp) -> None:
        """Fence the writer of a file that was deleted, if one was, at the members that answer."""
        if inode is None:
            return
        with self._journal.reading() as reading:
            last = queries.blocks_of(reading, inode)[-1:]
        for record in last:
            for volume in record.members if record.state is ReplicaState.WRITING else ():
                with suppress(NotAppliedError, OutcomeUnknownError, FencedError):  # else its renewal fails
                    known_volume(self._volumes, volume).fence(record.block, stamp, record.stamp)


def _check_length(path: str, wanted: int, length: int) -> None:
    if not 0 <= wanted <= length:
        raise InvalidInputError(
            f"{path} has {length} bytes and cannot be cut to {wanted}; nothing was changed; give a length "
            f"from 0 to {length}"
        )
