"""The files of the default journal and of its satellites, read as one tree.

What is there is the union of both sides, without what whiteouts hide; a path that both have is the
satellite's. A reader reads the old side first and then the satellite. A file only moves from the old side to
the satellite, and is there before it is deleted here: so it is seen at least once, and once in a listing.

Source: LinkedIn's FailoverFS; satellite, "Overlay".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from lockgate.storage_core.errors import (
    JournalUnavailableError,
    PathNotDirectoryError,
    PathNotFoundError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.mounts import NAME, NO_MOUNTS, Mount, MountTable
from lockgate.storage_core.files.namespace.queries import PAGE, TREE, FileStatus, listing, status_of
from lockgate.storage_core.files.namespace.queries import status as status_in
from lockgate.storage_core.files.namespace.rows import File, Inode, InodeKind
from lockgate.storage_core.files.namespace.tree_paths import parse_path, shown
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.read.snapshot_read import Reading, Reads
from lockgate.storage_core.satellite.whiteouts import Whiteout
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.satellite")
T = TypeVar("T")

Pair = tuple[Inode, File | None]
Pairs = tuple[Sequence[Pair], Sequence[Pair]]
"""The names on a path, and a page of those below it."""
NOTHING: Final[Pairs] = ((), ())


class Side(NamedTuple):
    """A journal's files, and the journal."""

    files: Files
    journal: Journal


class Found(NamedTuple):
    """What is at a path.

    Attributes:
        old: The names on it of the old side that nothing hides, to the last one that exists.
        new: The same of the satellite.
    """

    names: tuple[str, ...]
    journal: str
    old: Sequence[Pair]
    new: Sequence[Pair]

    @property
    def in_new(self) -> Inode | None:
        """The file or directory of the satellite."""
        return self.new[-1][0] if len(self.new) == len(self.names) else None

    @property
    def in_old(self) -> Inode | None:
        """The file or directory of the old side."""
        return self.old[-1][0] if len(self.old) == len(self.names) else None

    def status(self) -> FileStatus:
        """Return the status of the path.

        Raises:
            PathNotFoundError: It does not exist.
        """
        if self.in_new is not None:
            return status_of(*self.new[-1], journal=self.journal)
        if self.in_old is not None:
            return status_of(*self.old[-1])
        self.refuse_missing(len(self.names))
        path = shown(self.names)
        raise PathNotFoundError(f"{path} does not exist; nothing was changed; check the path", path)

    def refuse_missing(self, depth: int) -> None:
        """Raise unless the first names, but the last of so many, are directories on one of the sides."""
        longest = max(self.new, self.old, key=len)
        for at, (row, _) in enumerate(longest[: depth - 1], start=1):
            if row.kind is not InodeKind.DIRECTORY:
                path = shown(self.names[:at])
                raise PathNotDirectoryError(f"{path} is a file, not a directory; nothing was changed", path)
        if len(longest) < depth - 1:
            path = shown(self.names[: len(longest) + 1])
            raise PathNotFoundError(
                f"the directory {path} does not exist; nothing was changed; check the path, or make it first",
                path,
            )


class UnionReads(Files):
    """Reads of the default journal, which is the old side of each mount, and of the satellites.

    Attributes:
        journal: The default journal.
        settings: Of `Files`, and `satellite_fallback`.
        satellite: Returns the satellite of a mount.
    """

    def __init__(
        self,
        journal: Journal,
        volumes: Mapping[VolumeId, Volume],
        settings: Settings,
        satellite: Callable[[Mount], Side],
        **options: Any,
    ) -> None:
        """Use the files of a journal and of its satellites.

        Args:
            journal: The default journal.
            volumes: Its volumes.
            settings: See `Files`.
            satellite: Returns the satellite of a mount; it is opened by the first call.
            options: Options of `Files`.
        """
        super().__init__(journal, volumes, settings, **options)
        self.journal = journal
        self.settings = settings
        self.satellite = satellite
        self._table = NO_MOUNTS
        self._decided = threading.local()  # another thread may read a newer table between decision and entry
        self._warned: set[str] = set()
        self._cut: set[Mount] = set()

    def all_mounts(self) -> tuple[Mount, ...]:
        """Return the mounts."""
        self._read(lambda _: None)
        return self._table.all

    def list(self, path: str = "/", after: str | None = None) -> list[FileStatus]:
        """Return a page of the names in a directory of both sides, in order; see `Files.list`.

        It is two snapshots, first of the old side. Both are in the order of code points, so the last name of
        the page before is the cursor of both.
        """
        names = parse_path(path)
        mount = self._unmounted(f"{path}/", lambda reading: listing(reading, path, after))
        if not isinstance(mount, Mount):
            return mount
        while True:
            found, old_page, new_page, hidden = self._look(mount, names, after or "")
            if not found.status().is_directory:
                raise PathNotDirectoryError(f"{path} is a file, not a directory; nothing was changed", path)
            if found.in_old is None:
                old_page = ()
            ends = [page[-1][0].name for page in (old_page, new_page) if len(page) == PAGE]
            shown_names = {
                row.name: status_of(row, file) for row, file in old_page if row.inode not in hidden
            }
            shown_names |= {row.name: status_of(row, file, mount.journal) for row, file in new_page}
            page = [one for name, one in sorted(shown_names.items()) if not ends or name <= min(ends)]
            if page or not ends:
                return page
            after = min(ends)  # all of these names are hidden

    def status(self, path: str) -> FileStatus:
        """Return what a path names, of the satellite if both sides have it; see `Files.status`."""
        mount = self._unmounted(path, lambda reading: status_in(reading, path))
        if not isinstance(mount, Mount):
            return mount
        return self._find(path, mount).status()

    def is_open(self, found: FileStatus) -> bool:
        """Return whether a file has a writer, or one that ended; see `Files.is_open`."""
        of = next((one for one in self._table.all if one.journal == found.journal), None)
        return Files.is_open(self.satellite(of).files if of else self, found)

    def _satellites(self) -> Sequence[Side]:
        return [self.satellite(one) for one in {one.journal: one for one in self.all_mounts()}.values()]

    def _find(self, path: str, mount: Mount, *, writes: bool = False) -> Found:
        return self._look(mount, parse_path(path), writes=writes)[0]

    def _read(self, query: Callable[[Reading], T], reads: Reads | None = None) -> T:
        """Read the default journal, and its mount table in the same state."""

        def with_mounts(reading: Reading) -> T:
            table = reading.get(MountTable, NAME) or NO_MOUNTS
            if table.version > self._table.version:
                self._table = table
            return query(reading)

        return (reads or self.reads).read(with_mounts)

    def _unmounted(self, path: str, query: Callable[[Reading], T]) -> T | Mount:
        """Return what a query finds, or the mount that the path is below."""
        while (mount := self._mount(path)) is None:
            found = self._read(lambda reading: None if self._mount(path) else query(reading))
            if found is not None:
                return found
        return mount

    def _look(
        self, mount: Mount, names: tuple[str, ...], after: str | None = None, *, writes: bool = False
    ) -> tuple[Found, Sequence[Pair], Sequence[Pair], set[int]]:
        """Look a path up on the old side, then in the satellite; return what is there.

        Also return a page of each side below it, if `after` is a name, and the inodes that are hidden. Until
        the cut both are read at their primaries: an observer that is behind would show what was moved or
        deleted, or lack what was moved.
        """

        def query(reading: Reading) -> Pairs:
            page = () if after is None else reading.below(TREE, names, after=after, limit=PAGE)
            return reading.on_path(TREE, names), page

        is_cut = mount.cut_s is not None
        old, old_page = NOTHING if is_cut else self._read(query, self.journal)
        rows = [(row.inode,) for row, _ in (*old, *old_page)]
        hidden: set[int] = set()
        try:
            side = self.satellite(mount)
            if is_cut and mount not in self._cut:
                side.journal.status()  # its observers are to have what was moved before the cut
                self._cut.add(mount)
            reads = side.files.reads if is_cut else side.journal
            (new, new_page), whiteouts = reads.read(
                lambda reading: (query(reading), reading.find(Whiteout, rows) if rows else ())
            )
            hidden = {one.inode for one in whiteouts}
            self._warned.discard(mount.journal)
        except JournalUnavailableError as error:
            if writes or is_cut:
                raise JournalUnavailableError(
                    f"satellite {mount.satellite} of {mount.prefix} is down: {error}; nothing was changed; "
                    f"start the database of journal {mount.journal}, or set LOCKGATE_SATELLITE_FALLBACK for "
                    "new files"
                ) from error
            if mount.journal not in self._warned:
                self._warned.add(mount.journal)
                LOG.warning("satellite %s is down: only old files are read: %s", mount.satellite, error)
            new, new_page = NOTHING
        end = next((at for at, (row, _) in enumerate(old) if row.inode in hidden), len(old))
        return Found(names, mount.journal, old[:end], new), old_page, new_page, hidden

    def _mount(self, path: str) -> Mount | None:
        """Return the mount that a path is below."""
        return next((one for one in self._table.all if one.has(path)), None)
