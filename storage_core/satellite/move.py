"""A satellite: add it, move what is left on the old side, and cut the old side off.

A move is bounded, resumable and throttled, for what has no retention. What is left to do is what the old side
still has, so a mover that is killed is followed by another one. Each file is copied beside the tree of the
satellite; then, if it has not changed since, it is held on the old side and made visible in the
satellite in one entry, which hides the old file, and the old file is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import msgspec

from lockgate.storage_core.concurrency import Progress, in_order, no_progress
from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    JournalUnavailableError,
    LeaseHeldError,
    LockgateError,
    MalformedRecordError,
    ObjectNotFoundError,
    PathNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.files.file_recovery import give_back
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.mounts import AddMount, CutMount, Mount, refuse_overlap
from lockgate.storage_core.files.namespace.queries import Walked, walk
from lockgate.storage_core.files.namespace.tree import Delete
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Leases, Mutation, Refused
from lockgate.storage_core.satellite.overlay import Overlay
from lockgate.storage_core.satellite.union_reads import Side
from lockgate.storage_core.satellite.whiteouts import MOVE, NO_MOVER, Adopt, HoldOldFile, Whiteout
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.protocol import in_pages

BATCH: Final = 100
"""Files of a batch: so many are copied, and then moved in four transactions."""
COUNTED: Final = 10_000
"""Files that a status counts on the old side, so that it costs the same in every journal."""
OWNER: Final = "/.lockgate-satellite"
"""Directory of the satellite's own tree, which no mount shows: below it the default journal has copies."""
READ_BYTES: Final = 1024 * 1024


class MountStatus(msgspec.Struct, kw_only=True):
    """How far a mount is.

    Attributes:
        satellite: Name of the satellite.
        prefix: The directory.
        journal: Name of its journal.
        why_down: Why the satellite cannot be reached; empty if it can.
        old_files: Closed files that are left on the old side, at most `COUNTED`.
        old_open: Files there that have a writer, or one that ended.
        old_directories: Directories there.
        old_bytes: Bytes of the files, at the last commits.
        made_since: Files of these that were made there after the mount, while the satellite was down.
        has_more: Whether there are more than were counted.
        whiteouts: Deletions that are not finished.
        mover: Process that moves files now; empty if none does.
        is_cut: Whether the old side is cut off.
    """

    satellite: str
    prefix: str
    journal: str
    why_down: str = ""
    old_files: int = 0
    old_open: int = 0
    old_directories: int = 0
    old_bytes: int = 0
    made_since: int = 0
    has_more: bool = False
    whiteouts: int = 0
    mover: str = ""
    is_cut: bool = False

    @property
    def can_cut(self) -> bool:
        """Whether the old side has nothing more."""
        left = self.old_files or self.old_open or self.old_directories or self.whiteouts
        return not (left or self.why_down or self.is_cut)


class Moved(msgspec.Struct, kw_only=True):
    """What a move has done.

    Attributes:
        files: Files that were moved.
        size_bytes: Their bytes.
        skipped: Files that were left: open, changed meanwhile, or not readable now.
        problems: Why, for the first hundred.
        is_whole: Whether nothing of what was there at the beginning is left.
    """

    files: int = 0
    size_bytes: int = 0
    skipped: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
    is_whole: bool = False

    def skip(self, path: str, error: LockgateError) -> None:
        """Count a file that was left."""
        self.skipped += 1
        if len(self.problems) < BATCH:
            self.problems.append(f"{path}: {error}")


def add_mount(files: Overlay, mount: Mount) -> None:
    """Mount a satellite at a directory, which is made on both sides; a repeated call changes nothing.

    Raises:
        ConflictError: The mount overlaps with another one.
    """
    if mount.identity == files.journal.identity:
        raise InvalidInputError(f"journal {mount.journal} is the default journal; name another one")
    for one in files.all_mounts():
        if (one.prefix, one.satellite, one.identity) == (mount.prefix, mount.satellite, mount.identity):
            return
    refuse_overlap(mount.prefix, files.all_mounts())  # before directories are made; the entry looks again
    new = files.satellite(mount).files
    new.make_directory(OWNER, parents=True)
    if {one.name for one in new.list(OWNER)} - {files.journal.identity}:  # whiteouts name inodes of one
        raise ConflictError(
            f"journal {mount.journal} is a satellite of another journal; nothing was changed; use another"
        )
    new.make_directory(f"{OWNER}/{files.journal.identity}", parents=True)
    new.make_directory(mount.prefix, parents=True)  # what is made there has a place
    files.make_directory(mount.prefix, parents=True)
    op = AddMount(
        prefix=mount.prefix, satellite=mount.satellite, journal=mount.journal, identity=mount.identity
    )
    files.journal.apply(op)


def status_of_mount(files: Overlay, mount: Mount) -> MountStatus:
    """Count what is left on the old side of a mount, at most `COUNTED` names."""
    found = MountStatus(
        satellite=mount.satellite, prefix=mount.prefix, journal=mount.journal, is_cut=mount.cut_s is not None
    )
    for number, (_, one, _) in enumerate(walk(partial(Files.list, files), mount.prefix)):
        if number == COUNTED:
            found.has_more = True
            break
        if one.is_directory:
            found.old_directories += 1
        else:
            found.old_open += one.is_open
            found.old_files += not one.is_open
            found.old_bytes += one.length_bytes
            found.made_since += one.made_s > mount.added_s
    try:
        side = files.satellite(mount)
        with side.journal.reading() as reading:
            found.whiteouts = reading.count(Whiteout)
        view = Leases(side.journal).look(MOVE)
    except JournalUnavailableError as error:
        found.why_down = str(error)
        return found
    if view is not None and view.lapses_in_s:
        found.mover = f"{view.lease.holder} ({view.state})"
    return found


def cut_off(files: Overlay, mount: Mount) -> None:
    """Let a mount end at the satellite.

    Raises:
        DirectoryNotEmptyError: The old side has files or directories left.
        LeaseHeldError: A mover is at work.
    """
    with _moving(files, files.satellite(mount)) as lease:
        files.finish_all(files.satellite(mount), lease)
        files.journal.apply(CutMount(prefix=mount.prefix))


@dataclass
class Move:
    """One move of the files of a mount.

    Attributes:
        files: The files.
        mount: The mount.
        limit: Move at most so many files.
        files_per_s: Move at most so many files a second.
        bytes_per_s: Copy at most so many bytes a second.
        progress: Gets the number of files.
    """

    files: Overlay
    mount: Mount
    limit: int | None = None
    files_per_s: float | None = None
    bytes_per_s: float | None = None
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        """Open the satellite."""
        self.done = Moved()
        self._new = self.files.satellite(self.mount)
        self._copies = f"{OWNER}/{self.files.journal.identity}"
        self._lease = NO_MOVER
        self._adopted: set[int] = set()

    def run(self) -> Moved:
        """Move what is there now.

        Raises:
            LeaseHeldError: Another mover is at work.
        """
        with _moving(self.files, self._new) as self._lease, step("move"):
            self.files.finish_all(self._new, self._lease)
            self._remove_copies()  # of a mover that was killed
            self._new.files.make_directory(self._copies, parents=True)
            for batch in in_pages(walk(partial(Files.list, self.files), self.mount.prefix), BATCH):
                self._move(batch)
                if self.limit is not None and self.done.files >= self.limit:
                    break
            else:
                self.done.is_whole = not self.done.skipped
            self._remove_copies()
        return self.done

    def _move(self, batch: Sequence[Walked]) -> None:
        """Move a batch: names in order, a directory after what is in it."""
        clock = self.files.journal.clock
        began_s, before = clock.monotonic_s(), msgspec.structs.replace(self.done)
        left = None if self.limit is None else self.limit - self.done.files
        files = [one for one in batch if not one.status.is_directory][:left]
        copied = []
        outcomes = in_order(self._copy, files, self.files.settings.near_calls)
        for one, outcome in zip(files, outcomes, strict=True):
            if isinstance(outcome, LockgateError):
                self.done.skip(one.path, outcome)
            elif outcome:
                copied.append(one)
        self._publish(copied)
        self._remove_directories([one for one in batch if one.status.is_directory])
        self.files.finish_all(self._new, self._lease)
        self.progress("move", self.done.files, 0)
        least_s = max(
            (self.done.files - before.files) / (self.files_per_s or inf),
            (self.done.size_bytes - before.size_bytes) / (self.bytes_per_s or inf),
        )
        clock.sleep(max(0.0, least_s - (clock.monotonic_s() - began_s)))

    def _copy(self, one: Walked) -> bool | LockgateError:
        """Copy a closed file beside the tree of the satellite; return whether it is whole, or why not."""
        if one.status.is_open:
            return ConflictError(
                "it is open; it can be moved when its writer has closed it, or after `lockgate files recover`"
            )
        copied = 0
        try:
            with (
                Files.open(self.files, one.path) as reader,
                self._new.files.create(self._copy_of(one)) as writer,
            ):
                while data := reader.read(READ_BYTES):
                    copied += writer.write(data)
        except PathNotFoundError:
            return False  # it was deleted
        except (StoreUnavailableError, MalformedRecordError) as error:
            return error
        FAILPOINTS.hit("satellite.copy.after")
        return copied == one.status.length_bytes  # else it was changed

    def _publish(self, copied: Sequence[Walked]) -> None:
        """Make copies visible in place of the old files, and delete those."""
        until_s, hard_s = self._until_s(), self.files.settings.lease_hard_s
        held: list[tuple[Walked, Stamp]] = []
        entries = [
            Mutation(
                op=HoldOldFile(
                    path=one.path,
                    inode=one.status.inode,
                    changed_s=one.status.changed_s,
                    length_bytes=one.status.length_bytes,
                    mover=f"{MOVE}:{self._new.journal.identity}",
                    hard_s=hard_s,
                )
            )
            for one in copied
        ]
        for one, outcome in zip(copied, self.files.journal.write(entries), strict=True):
            if isinstance(outcome, Refused):
                self._note(one, outcome.error)
            else:
                held.append((one, outcome.stamp))
        FAILPOINTS.hit("satellite.hold.after")
        self._adopt_directories([above for one, _ in held for above in one.above], until_s)
        published = []
        adopted = self._new.journal.write([self._adopt(one, self._copy_of(one), until_s) for one, _ in held])
        for (one, stamp), outcome in zip(held, adopted, strict=True):
            if isinstance(outcome, Refused):
                give_back(Leases(self.files.journal), file_resource(one.status.inode), stamp)
                self._note(one, outcome.error)
            else:
                published.append(Whiteout(inode=one.status.inode, path=one.path))
                self.done.files += 1
                self.done.size_bytes += one.status.length_bytes
        FAILPOINTS.hit("satellite.adopt.after")
        self.files.finish(self._new, published, self._lease)

    def _remove_directories(self, directories: Sequence[Walked]) -> None:
        """Delete directories of the old side that are empty; the satellite has them then."""
        self._adopt_directories([each for one in directories for each in (*one.above, one)], self._until_s())
        entries = [
            Mutation(op=Delete(path=one.path, inode=one.status.inode))
            for one in directories
            if one.status.inode in self._adopted
        ]
        self.files.journal.write(entries)  # refused: it is not empty, or another process has deleted it

    def _adopt_directories(self, directories: Sequence[Walked], until_s: float) -> None:
        """Make directories in the satellite, those above first, unless they were deleted."""
        missing = [one for one in dict.fromkeys(directories) if one.status.inode not in self._adopted]
        adopted = self._new.journal.write([self._adopt(one, "", until_s) for one in missing])
        for one, outcome in zip(missing, adopted, strict=True):
            if not isinstance(outcome, Refused):
                self._adopted.add(one.status.inode)

    def _adopt(self, one: Walked, copy: str, until_s: float) -> Mutation:
        op = Adopt(
            resource=MOVE,
            stamp=self._lease,
            path=one.path,
            inode=one.status.inode,
            above=tuple(above.status.inode for above in one.above),
            copy=copy,
            made_s=one.status.made_s,
            changed_s=one.status.changed_s,
            until_s=until_s,
        )
        if not copy:
            return Mutation(op=op)
        # A file is moved once, whichever mover does it; a restored journal has it again, to be changed.
        version = f"{one.status.inode}-{one.status.changed_s}-{one.status.length_bytes}"
        return Mutation(op=op, request_id=f"move-{version}")

    def _note(self, one: Walked, error: LockgateError) -> None:
        if isinstance(error, FencedError):
            raise error
        if not isinstance(error, ObjectNotFoundError):  # else it was deleted
            self.done.skip(one.path, error)

    def _until_s(self) -> float:
        """Return the end of the time for which old files are surely held, by the satellite's clock."""
        now_s = self._new.journal.read(lambda reading: reading.now_s())
        return now_s + self.files.settings.lease_hard_s / 2

    def _remove_copies(self) -> None:
        with suppress(PathNotFoundError):
            self._new.files.delete(self._copies, recursive=True)

    def _copy_of(self, one: Walked) -> str:
        return f"{self._copies}/{self._lease}-{one.status.inode}"


@contextmanager
def _moving(files: Overlay, new: Side) -> Iterator[Stamp]:
    """Hold the lease of the satellite's mover; one that has lapsed is taken over.

    Raises:
        LeaseHeldError: Another mover is at work, or has ended less than the lease's limit ago.
    """
    leases, clock = Leases(new.journal), new.journal.clock
    view = leases.look(MOVE)
    if view is not None and view.is_overdue and view.lapses_in_s:
        clock.sleep(view.lapses_in_s)
        view = leases.look(MOVE)
    if view is not None and view.lapses_in_s:
        raise LeaseHeldError(
            f"another mover of this satellite is at work: its lease is {view.state} and lapses in "
            f"{view.lapses_in_s:.0f} s; nothing was changed; wait for it, or end it"
        )
    began_s, renewer = clock.monotonic_s(), new.files.renewer
    stamp = leases.take(
        MOVE,
        renewer.holder,
        purpose="write" if view is None else "recover",
        soft_s=files.settings.lease_hard_s,
        hard_s=files.settings.lease_hard_s,
        seen=None if view is None else view.lease,
    )
    renewer.keep(MOVE, stamp, since_s=began_s)
    try:
        yield stamp
    finally:
        renewer.drop(MOVE)
        give_back(leases, MOVE, stamp)
