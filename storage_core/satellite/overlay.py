"""Overlay: the files of the default journal and of its satellites as one tree.

New files at a mounted directory are made in the satellite. `union_reads` reads both sides; two rules of those
who change them keep the tree right:

- No name is made on the old side below a mount (`mounts.refuse_other_mounts`), so what was absent there stays
  absent while a name is made in the satellite. Only `satellite_fallback` makes names there.
- A deletion hides the old file first: whiteout in the satellite, deletion, end of the whiteout.

Source: LinkedIn's FailoverFS; satellite, "Overlay".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lockgate.storage_core.errors import (
    DirectoryNotEmptyError,
    JournalUnavailableError,
    LeaseHeldError,
    MountPointError,
    MountsChangedError,
    OtherJournalPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotFoundError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files.file_recovery import RecoveredFile
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.files.namespace.queries import PAGE, FileStatus, listing, walk
from lockgate.storage_core.files.namespace.rows import Inode, InodeKind
from lockgate.storage_core.files.namespace.tree import Delete, Rename, not_empty
from lockgate.storage_core.files.namespace.tree_paths import parse_path, shown
from lockgate.storage_core.files.reader import Reader
from lockgate.storage_core.files.removal import Removed
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.writing.writer import FileWriter
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Journal, Leases, Mutation, Refused
from lockgate.storage_core.satellite.union_reads import LOG, Side, T, UnionReads
from lockgate.storage_core.satellite.whiteouts import MOVE, NO_MOVER, DropWhiteouts, WhiteOut, Whiteout
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.protocol import in_pages

TRIES: Final = 5
"""Tries of a call that meets a move, or a change of the mounts."""
MOVED_S: Final = 0.1
"""Pause before the next try while a mover holds a file: two transactions long."""


class Overlay(UnionReads):
    """The files of the default journal, which is the old side of each mount, and of the satellites."""

    @property
    def mounts(self) -> int:
        """Version of the mount table by which this thread has chosen a side."""
        return int(getattr(self._decided, "version", self._table.version))

    def journal_of(self, directory: str) -> Journal:
        """Return the journal in which new files in a directory are made, the default one if it is down."""
        self.all_mounts()
        mount = self._mount(f"{directory}/")
        try:
            return self.journal if mount is None else self.satellite(mount).journal
        except JournalUnavailableError:
            return self.journal

    def create(self, path: str, *, members: Sequence[VolumeId] | None = None) -> FileWriter:
        """Create a file, in the satellite if its directory is mounted; see `Files.create`.

        Raises:
            PathExistsError: One of the sides has the path.
            JournalUnavailableError: The satellite is down, and `satellite_fallback` is not set.
        """

        def made(mount: Mount | None) -> FileWriter:
            if mount is not None:
                try:
                    self._free(path, mount)
                    return self.satellite(mount).files.create(path, members=members)
                except JournalUnavailableError as error:
                    if not self.settings.satellite_fallback or mount.cut_s is not None:
                        raise
                    LOG.warning("%s is made in the default journal: %s", path, error)
                    Files.make_directory(self, path.rpartition("/")[0], parents=True)
            return Files.create(self, path, members=members)

        return self._mounted(path, made)

    def append(self, path: str) -> FileWriter:
        """Open a file at its end, on the side that has it; see `Files.append`."""
        return self._on_its_side(path, lambda files: Files.append(files, path))

    def truncate(self, path: str, length_bytes: int) -> None:
        """Cut a file on the side that has it; see `Files.truncate`."""
        self._on_its_side(path, lambda files: Files.truncate(files, path, length_bytes))

    def open(self, path: str) -> Reader:
        """Return a reader of a file, of the side that has it; see `Files.open`.

        A reader of an old file that is moved reads on until the space of the old copy is freed.
        """
        return self._on_its_side(path, lambda files: Files.open(files, path), reads=True)

    def make_directory(self, path: str, *, parents: bool = False) -> None:
        """Make a directory, in the satellite if it is below a mount; see `Files.make_directory`."""

        def made(mount: Mount | None) -> None:
            if mount is None:
                Files.make_directory(self, path, parents=parents)
                return
            if parents:
                for at, (row, _) in enumerate(self._find(path, mount, writes=True).old, start=1):
                    if row.kind is not InodeKind.DIRECTORY:
                        raise PathExistsError(f"{shown(parse_path(path)[:at])} is a file already", path)
            else:
                self._free(path, mount)
            self.satellite(mount).files.make_directory(path, parents=parents)

        self._mounted(path, made)

    def rename(self, path: str, target: str, *, replace: bool = False) -> None:
        """Move a file or a directory within one journal; see `Files.rename`.

        A file of the old side is replaced in the steps of a deletion: at each there is one at the target.

        Raises:
            OtherJournalPathError: The path and the target are in two journals (EXDEV).
            MountPointError: A satellite is mounted at the path, or below it.
        """
        parse_path(target)

        def moved(mount: Mount | None) -> None:
            self._refuse_mount_point(path)
            if self._mount(target) != mount:
                raise self._border(path, target)
            if mount is None:
                Files.rename(self, path, target, replace=replace)
                return
            new = self.satellite(mount)
            if (found := self._find(path, mount, writes=True)).in_old is not None:
                raise self._border(path, target)
            found.status()
            old = None if target.startswith(f"{path}/") else self._free(target, mount, replace=replace)
            if old is None:
                new.files.rename(path, target, replace=replace)
                return
            ops = (
                Rename(path=path, target=target, replaces=True),
                WhiteOut(path=target, inode=old.inode, is_replaced=True),
            )
            for outcome in new.journal.write([Mutation(op=op) for op in ops]):
                if isinstance(outcome, Refused):
                    raise outcome.error
                new.files.fence_deleted(outcome.result, outcome.stamp)
            self.finish(new, [Whiteout(inode=old.inode, path=target)])

        self._mounted(path, moved)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or directory on both sides; see `Files.delete`.

        After a crash it is not seen any more once the first step is done; the next move, or
        `remove_deleted`, does the other steps.

        Raises:
            MountPointError: A satellite is mounted at the path, or below it.
            JournalUnavailableError: The satellite is down; nothing was changed.
        """

        def deleted(mount: Mount | None) -> None:
            self._refuse_mount_point(path)
            if mount is None:
                Files.delete(self, path, recursive=recursive)
                return
            found, new = self._find(path, mount, writes=True), self.satellite(mount)
            found.status()
            if (old := found.in_old) is None:
                new.files.delete(path, recursive=recursive)
                return
            if old.kind is InodeKind.DIRECTORY and not recursive and self.list(path):
                raise not_empty(path)
            seen_s = self.journal.read(lambda reading: reading.now_s()) if recursive else 0.0
            op = WhiteOut(path=path, inode=old.inode, recursive=recursive, seen_s=seen_s)
            written = new.journal.apply(op)
            FAILPOINTS.hit("satellite.whiteout.after")
            new.files.fence_deleted(written.result, written.stamp)
            self.finish(new, [Whiteout(inode=old.inode, path=path)])

        self._mounted(path, deleted)

    def delete_closed(self, found: Iterable[tuple[str, FileStatus]]) -> int:
        """Delete closed files of any sides, in a transaction for each; see `Files.delete_closed`.

        One that a mover holds is left, so nothing of it has to be hidden.
        """
        self._decided.version = self._table.version
        sides: dict[Mount | None, list[tuple[str, FileStatus]]] = {}
        for path, status in found:
            sides.setdefault(self._mount(path) if status.journal else None, []).append((path, status))
        return sum(
            Files.delete_closed(self.satellite(mount).files if mount else self, of)
            for mount, of in sides.items()
        )

    def finish(
        self,
        new: Side,
        whiteouts: Sequence[Whiteout],
        mover: Stamp = NO_MOVER,
        *,
        recursive: bool = True,
    ) -> None:
        """Delete what whiteouts hide on the old side, and drop them.

        Args:
            new: The satellite.
            whiteouts: At most some hundreds.
            mover: See `DropWhiteouts`.
            recursive: Whether directories may have names in them; others stay, and are shown again.
        """
        self._delete_old([(one.path, one.inode) for one in whiteouts], recursive=recursive)
        FAILPOINTS.hit("satellite.old.after")
        gone = tuple(one.inode for one in whiteouts)
        if gone:
            new.journal.apply(DropWhiteouts(inodes=gone, mover=mover))

    def recover(self, path: str, *, accept_loss: bool = False) -> int | None:
        """Recover a file on the side that has it; see `Files.recover`."""
        return self._on_its_side(path, lambda files: Files.recover(files, path, accept_loss=accept_loss))

    def recover_lapsed(
        self, *, note: Callable[[RecoveredFile], None] = lambda _: None
    ) -> Sequence[RecoveredFile]:
        """Recover all files of all sides whose leases have lapsed; see `Files.recover_lapsed`."""
        all_files = (self, *(side.files for side in self._satellites()))
        return [one for files in all_files for one in Files.recover_lapsed(files, note=note)]

    def finish_all(self, new: Side, mover: Stamp = NO_MOVER) -> None:
        """Finish the deletions of processes that have ended in one; see `finish`.

        What the fallback has made in a directory after it was hidden stays.
        """
        after: tuple[int, ...] | None = None
        while True:
            with new.journal.reading() as reading:
                page = reading.where(Whiteout, {}, limit=PAGE, after=after)
            if not page:
                return
            for hidden in page:
                below = walk(self._list_old, hidden.path)
                old = ((one.path, one.status.inode) for one in below if one.status.made_s <= hidden.seen_s)
                for batch in in_pages(old, PAGE):
                    self._delete_old(batch)
            self.finish(new, page, mover, recursive=False)
            after = page[-1].key

    def _list_old(self, path: str, after: str | None) -> Sequence[FileStatus]:
        """Return a page of the old side at its primary: an observer that is behind would leave names out."""
        return self.journal.read(lambda reading: listing(reading, path, after))

    def _delete_old(self, names: Sequence[tuple[str, int]], *, recursive: bool = False) -> None:
        """Delete paths of the old side that still name these inodes, but directories that are not empty."""
        entries = [Mutation(op=Delete(path=path, inode=one, recursive=recursive)) for path, one in names]
        for outcome in self.journal.write(entries):
            if not isinstance(outcome, Refused):
                self.fence_deleted(outcome.result, outcome.stamp)
            elif not isinstance(outcome.error, PathNotFoundError | DirectoryNotEmptyError):
                raise outcome.error

    def remove_deleted(self, *, dry_run: bool = False) -> Removed:
        """Remove the blocks of what was deleted, of all sides; see `Files.remove_deleted`."""
        done = super().remove_deleted(dry_run=dry_run)
        for side in self._satellites():
            if not dry_run:
                self.finish_all(side)
            more = side.files.remove_deleted(dry_run=dry_run)
            done.files += more.files
            done.blocks += more.blocks
            done.kept_blocks += more.kept_blocks
        return done

    def _decide(self, path: str) -> Mount | None:
        """Return the mount that a path is below; the entries of this thread carry the table's version."""
        table = self._table
        self._decided.version = table.version
        return next((one for one in table.all if one.has(path)), None)

    def _mounted(self, path: str, call: Callable[[Mount | None], T]) -> T:
        """Run a call that writes, again if the mounts were changed meanwhile."""
        parse_path(path)
        for left in reversed(range(TRIES)):
            try:
                return call(self._decide(path))
            except MountsChangedError:
                if not left:
                    raise
                self._read(lambda _: None)
        raise AssertionError(path)

    def _free(self, path: str, mount: Mount, *, replace: bool = False) -> Inode | None:
        """Refuse a path that one side has; make its directory in the satellite, if it is not there yet.

        A file may be there if it is to be replaced; that of the old side is returned.
        """
        found = self._find(path, mount, writes=True)
        found.refuse_missing(len(found.names))
        there = found.in_new or found.in_old
        if there is not None and not (replace and there.kind is InodeKind.FILE):
            raise PathExistsError(f"{path} is a {there.kind} already; nothing was changed", path)
        if len(found.new) < len(found.names) - 1:
            self.satellite(mount).files.make_directory(shown(found.names[:-1]), parents=True)
        return found.in_old

    def _on_its_side(self, path: str, call: Callable[[Files], T], *, reads: bool = False) -> T:
        """Call a function of `Files` with the side that has a file; again if the file is being moved."""
        if reads:  # an entry that does not know the mounts is refused; a read is not
            self._read(lambda _: None)

        def called(mount: Mount | None) -> T:
            if mount is None:
                return call(self)
            for left in reversed(range(TRIES)):
                status = self._find(path, mount, writes=not reads).status()
                if status.is_directory:
                    raise PathIsDirectoryError(
                        f"{path} is a directory, not a file; nothing was changed; name a file in it", path
                    )
                if status.journal:
                    break
                try:
                    return call(self)
                except (PathNotFoundError, LeaseHeldError) as error:
                    is_held = isinstance(error, LeaseHeldError)
                    if not left or (is_held and not self._is_moving(status.inode)):
                        raise
                    self.journal.clock.sleep(MOVED_S)
            return call(self.satellite(mount).files)

        return self._mounted(path, called)

    def _is_moving(self, inode: int) -> bool:
        view = Leases(self.journal).look(file_resource(inode))
        return view is None or view.lease.holder.startswith(MOVE)

    def _refuse_mount_point(self, path: str) -> None:
        for one in self._table.all:
            if one.prefix == path or one.prefix.startswith(f"{path}/"):
                raise MountPointError(
                    f"satellite {one.satellite} is mounted at {one.prefix}; nothing was changed; name what "
                    "is in it",
                    path,
                )

    def _border(self, path: str, target: str) -> OtherJournalPathError:
        return OtherJournalPathError(
            f"{path} and {target} are in two journals; nothing was changed; copy it and delete it, or move "
            "an old file to the satellite first: `lockgate satellite move`",
            path,
        )
