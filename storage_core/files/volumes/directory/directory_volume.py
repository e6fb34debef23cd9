"""A volume in a directory that any number of processes, and machines with the same mount, use at once.

    volume.id, journal.id
    blocks/<block>/<stamp>.log       a log; only a writer whose log has this name may count on it
    blocks/<block>/<stamp>.fenced    a log whose writer was fenced
    blocks/<block>/<stamp>.*.new     the claim of a fence: a log that is being made
    quarantine/<block>/<number>/     a replica that is set aside
    deleted/                         replicas that are being deleted

An order of steps stops a stale writer, without a lock. A writer syncs its log, then looks whether the log
still has its name; only then its flush counts. A fence makes its claim, renames the older logs, reads, gives
its log its name, and looks for newer claims. So a flush that counts was durable before a fence read it. Of
two fences, the older one sees the claim of the newer one, or the newer one sees the log of the older one.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from types import TracebackType
from typing import Final, NamedTuple, Self

from msgspec.structs import replace

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    MalformedRecordError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RecordVersionError,
    StaleReplicaError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes.directory.log import FENCED, PEN, Log, log_name
from lockgate.storage_core.files.volumes.directory.log_format import NEVER_CUT
from lockgate.storage_core.files.volumes.directory.log_writer import LogWriter
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import Usage, VolumeId, check_limit
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated

LOG: Final = logging.getLogger("lockgate.files")
_NAME: Final = re.compile(r"([0-9]{10})-([0-9]{20})(\.log|\.fenced|\.[0-9a-f]+\.new)")
_LOCKS: Final = 256
_KEPT: Final = 2**18
"""Extents of logs, in a volume's memory: some 15 MiB."""
_OF_A_LOG: Final = 2**10
"""What a log itself takes, as a number of extents: so that at most 256 are kept."""
_LEFT_OVER_S: Final = 3600.0
"""Age of a claim of a dead process, and of a replica that one has not deleted to its end."""


class _Logs(NamedTuple):
    """The files of a block: the suffix of each log, and the claims."""

    suffixes: dict[Stamp, str]
    claims: list[tuple[Stamp, str]]

    @property
    def newest(self) -> Stamp | None:
        """Return the stamp of the newest log."""
        return max(self.suffixes, default=None)

    def top(self, least: Stamp) -> Stamp:
        """Return the newest stamp of a log or a claim, at least a given one."""
        return max([least, *self.suffixes, *(stamp for stamp, _ in self.claims)])

    def refuse_older(self, block: BlockId, stamp: Stamp) -> None:
        """Refuse a stamp that is older than a log or a claim, or whose log was fenced.

        Raises:
            FencedError: It is.
        """
        if self.top(stamp) > stamp or self.suffixes.get(stamp) == FENCED:
            raise FencedError(
                f"block {block} was fenced at stamp {self.top(stamp)}; the call had {stamp}: a newer writer "
                "has it; stop"
            )


class _Call:
    """A call for one block, under its lock. No generator, which costs as much as a write of 1 KiB."""

    __slots__ = ("_block", "_lock", "_translated", "_volume")

    def __init__(self, volume: DirectoryVolume, name: str, block: BlockId, *, changes: bool = True) -> None:
        self._volume = volume
        self._block = block
        self._lock = volume.locks[block % _LOCKS]
        self._translated = translated(name, volume.path(block), changes=changes)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is FencedError:
            self._volume.drop_writer(self._block, is_fenced=True)
        self._lock.release()
        self._translated.__exit__(kind, error, trace)
        if kind is FencedError:
            self._volume.check_presence()


class DirectoryVolume:
    """A `Volume` in a directory.

    Args:
        folder: The directory. What is made below it has its permissions.
        volume: Id of the volume; nothing is made then. By default the volume that is there is opened, and
            made if there is none.
        disk: Calls of the disk.

    Attributes:
        id: Id of the volume, from its directory.

    Raises:
        StoreUnavailableError: There is another volume, or none; perhaps something is not mounted.
        ConflictError: The directory has the layout of an older Lockgate.

    Source: docs/internals/files.md, "Volumes".
    """

    def __init__(self, folder: Path, *, volume: VolumeId | None = None, disk: Disk | None = None) -> None:
        self._folder = folder
        self._blocks = f"{folder}/blocks"
        self._disk = disk or Disk()
        self.locks = [threading.Lock() for _ in range(_LOCKS)]
        self._writers: dict[BlockId, LogWriter] = {}
        self._read: OrderedDict[tuple[BlockId, Stamp], Log] = OrderedDict()
        self._reading = threading.Lock()
        self._listed: list[BlockId] | None = None
        with translated("open", str(folder), changes=True):
            if volume is None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mode = S_IMODE(folder.stat().st_mode) if folder.exists() else 0
            found, names = self._stored("volume.id"), _names_in(str(folder))
            if "owner.lock" in names or any(name.endswith(".head") for name in names):
                raise ConflictError(
                    f"{folder} has the layout of an older Lockgate, which this one does not read; nothing "
                    "was changed; use another directory"
                )
            if volume is None and found is None and "blocks" not in names:
                found = self._store("volume.id", secrets.token_hex(8))
            if found is None or (volume or found) != found:
                raise StoreUnavailableError(
                    f"{folder}: the volume {volume or ''} is expected here, and {found or 'none'} is there; "
                    "nothing was changed; mount it, bring it back, or register it where it is"
                )
            self.id = VolumeId(found)
            if volume is None:
                self._make_folder(Path(self._blocks))

    def claim(self, journal: str) -> None:
        """Give the volume to a journal; another one numbers its blocks alike."""
        with translated("claim", str(self._folder), changes=True):
            found = self._stored("journal.id") or self._store("journal.id", journal)
        if found != journal:
            raise ConflictError(
                f"the volume {self._folder} has blocks of the journal {found}, and LOCKGATE_JOURNAL_URL "
                f"names the journal {journal}; nothing was changed; use another directory"
            )

    def answers(self) -> bool:
        """Return whether the directory has this volume."""
        try:
            return self._stored("volume.id") == self.id
        except OSError:
            return False

    def check_presence(self) -> None:
        """Raise `StoreUnavailableError` if the directory has no longer this volume."""
        if not self.answers():
            raise StoreUnavailableError(
                f"{self._folder}: the volume {self.id} is not there any more; nothing was changed; mount it, "
                "or bring it back"
            )

    def close(self) -> None:
        """Close the logs that are open."""
        for writer in list(self._writers.values()):
            writer.release()
        self._writers.clear()

    def __enter__(self) -> Self:
        """Return the volume."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def create(self, block: BlockId, stamp: Stamp) -> Replica:
        """Create an empty replica; one that stands at this stamp is returned."""
        with _Call(self, "create", block):
            if self._logs(block).newest is None:
                self._make_folder(Path(self.path(block)))
                found = self._new_log(block, stamp, None)
                if len(found.suffixes) > 1:
                    self.drop_writer(block)
                    self._disk.unlink(Path(log_name(self.path(block), stamp) + PEN))
            return self._at(block, stamp).view()

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        """Append bytes at the end of a replica; bytes that stand already are compared.

        A fence by another process is found by the next flush at the latest.
        """
        with _Call(self, "append", block):
            return self._at(block, stamp).append(offset, data)

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        """Make all received bytes durable, and return their number."""
        with _Call(self, "flush", block):
            return self._at(block, stamp).flush()

    def acknowledge(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        """Note that all members have these bytes durably."""
        try:
            with _Call(self, "acknowledge", block):
                writer = self._writers.get(block)
                if writer is not None and writer.header.stamp == stamp:
                    writer.acknowledge(length_bytes)
        except Exception as error:  # noqa: BLE001 - soft state
            LOG.warning("block %s: the acknowledged length was not noted: %s", block, error)

    def trim(self, block: BlockId, stamp: Stamp, length_bytes: int) -> Replica:
        """Cut a replica at the stamp of its fence; a shorter one is refused."""
        with _Call(self, "trim", block):
            log = self._at(block, stamp)
            log.trim(length_bytes)
            return log.view()

    def finish(self, block: BlockId, stamp: Stamp, length_bytes: int, state: ReplicaState) -> Replica:
        """Seal a replica or open it to appends, durably with its bytes."""
        with _Call(self, "finish", block):
            log = self._at(block, stamp)
            log.finish(length_bytes, state)
            if state is ReplicaState.SEALED:
                self.drop_writer(block)
            return log.view()

    def read(self, block: BlockId, stamp: Stamp, offset: int, size: int) -> bytes:
        """Return durable bytes of the replica at a stamp; fewer than `size` only at their end.

        Of a replica that was fenced since, it returns what the fence has found and no trim has cut since.
        """
        with _Call(self, "read", block, changes=False):
            for is_last in (False, True):
                found = self._logs(block)
                if stamp not in found.suffixes:
                    break
                try:
                    log = self._read.get((block, stamp))
                    if log is None or found.newest != stamp or offset + size > log.durable_bytes:
                        log = self._loaded(block, stamp, found)
                    return log.read(offset, size)
                except RecordVersionError:
                    raise
                except (MalformedRecordError, FileNotFoundError) as error:
                    if is_last:  # else a fence may have deleted the log meanwhile
                        raise MalformedRecordError(f"block {block}, volume {self.id}: {error}") from error
                    self._read.pop((block, stamp), None)
            raise StaleReplicaError(f"block {block}: the volume {self.id} has no replica at stamp {stamp}")

    def stat(self, block: BlockId) -> Replica | None:
        """Return a replica, or None if there is none."""
        with _Call(self, "stat", block, changes=False):
            replica, found, before = None, self._logs(block), None
            while found != before and (newest := found.newest) is not None:
                with suppress(FileNotFoundError):
                    replica = self._loaded(block, newest, found).view()
                before, found = found, self._logs(block)  # a fence may have come meanwhile
            if (
                replica is not None
                and replica.state is ReplicaState.WRITING
                and found.suffixes.get(replica.stamp) == FENCED
            ):
                # How much of a late write the fence has read is not known until it has made its log.
                return replace(replica, durable_bytes=min(replica.acknowledged_bytes, replica.length_bytes))
            return replica

    def fence(self, block: BlockId, stamp: Stamp, committed: Stamp) -> Replica:
        """Refuse older stamps from here on, and return the replica once that is durable."""
        with _Call(self, "fence", block):
            found = self._logs(block)
            found.refuse_older(block, stamp)
            self._source(block, found, committed)
            if stamp not in found.suffixes:
                found = self._new_log(block, stamp, committed)
                with suppress(FileNotFoundError):  # a newer fence deletes them
                    self._delete_old(block, stamp, committed, found)
            return self._at(block, stamp).view()

    def delete(self, block: BlockId, stamp: Stamp) -> bool:
        """Delete a replica that is not newer than the stamp; return whether there was one."""
        with _Call(self, "delete", block):
            deleted = self._folder / "deleted"
            is_there = self._move(block, stamp, deleted / f"{block:020d}.{secrets.token_hex(4)}")
            with suppress(FileNotFoundError):
                for path in deleted.iterdir():
                    is_own = path.name.startswith(f"{block:020d}.")
                    if is_own or path.stat().st_ctime < time.time() - _LEFT_OVER_S:
                        self._disk.remove_tree(path)
            return is_there

    def quarantine(self, block: BlockId, stamp: Stamp) -> bool:
        """Set a damaged replica aside; one that is newer than the stamp stays."""
        with _Call(self, "quarantine", block):
            if (newest := self._logs(block).newest) is None:
                return False
            with suppress(OSError):
                os.close(Log.headed(self.path(block), block, newest)[1])  # a newer program's stays
            folder = self._folder / "quarantine" / f"{block:020d}"
            return self._move(block, stamp, folder / secrets.token_hex(4))

    def quarantined(self, after: BlockId | None, limit: int) -> tuple[BlockId, ...]:
        """Return the blocks of the next replicas that are set aside, or were never made to their end."""
        with translated("quarantined", str(self._folder), changes=False):
            check_limit(limit)
            aside = set(_blocks_in(f"{self._folder}/quarantine"))
            blocks = sorted(aside.union(_blocks_in(self._blocks)))
            left = blocks[0 if after is None else bisect_right(blocks, after) :]
            found = (one for one in left if one in aside or not _logs_in(self.path(one)).suffixes)
            return tuple(itertools.islice(found, limit))

    def discard(self, block: BlockId) -> bool:
        """Delete the replica of a block that is set aside, and what a creation that died has left of it."""
        path, made = self._folder / "quarantine" / f"{block:020d}", Path(self.path(block))
        with _Call(self, "discard", block):
            is_there = path.is_dir()
            if is_there:
                self._disk.remove_tree(path)
            is_unmade = made.is_dir() and not _logs_in(str(made)).suffixes
        if is_unmade:
            self.delete(block, Stamp())
        return is_there or (is_unmade and not made.is_dir())

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas in the order of their blocks."""
        with translated("replicas", str(self._folder), changes=False):
            if after is None or self._listed is None:
                self._listed = _blocks_in(self._blocks)
                self.check_presence()
            found: list[Replica] = []
            check_limit(limit)
            for block in self._listed[0 if after is None else bisect_right(self._listed, after) :]:
                try:
                    replica = self._outline(block)
                except (OSError, StoreUnavailableError, OutcomeUnknownError) as error:
                    if not self.answers():
                        raise
                    replica = Replica(block, Stamp(), ReplicaState.WRITING, 0, 0, damage=str(error))
                if replica is not None:
                    found.append(replica)
                    if len(found) == limit:
                        break
        return tuple(found)

    def usage(self) -> Usage:
        """Return the used and the free space."""
        used = 0
        with translated("usage", str(self._folder), changes=False):
            for path, _, names in os.walk(self._folder):
                for name in names:
                    with suppress(FileNotFoundError):  # it was deleted or renamed meanwhile
                        used += os.stat(f"{path}/{name}").st_size  # noqa: PTH116
            found = os.statvfs(self._folder)
        return Usage(used_bytes=used, free_bytes=found.f_bavail * found.f_frsize)

    def path(self, block: BlockId) -> str:
        """Return the folder of a block."""
        return f"{self._blocks}/{block:020d}"

    def drop_writer(self, block: BlockId, *, is_fenced: bool = False) -> None:
        """Forget the writer of a block; with `is_fenced`, only one that was fenced."""
        writer = self._writers.get(block)
        if writer is not None and (writer.is_fenced or not is_fenced):
            del self._writers[block]
            writer.release()

    def _logs(self, block: BlockId) -> _Logs:
        found = _logs_in(self.path(block))
        if found.newest is None:
            self.check_presence()
        return found

    def _outline(self, block: BlockId) -> Replica | None:
        newest, writer = self._logs(block).newest, self._writers.get(block)
        if newest is not None and (writer is None or writer.header.stamp != newest):
            with suppress(FileNotFoundError):
                if (outline := Log.outline(self.path(block), block, newest)) is not None:
                    return outline
        return self.stat(block) if newest is not None else None

    def _at(self, block: BlockId, stamp: Stamp) -> Log:
        """Return the log of a stamp, to change it.

        Raises:
            ObjectNotFoundError: There is no replica.
            FencedError: The replica has a newer stamp.
            ConflictError: It has an older one.
        """
        writer = self._writers.get(block)
        if writer is not None and writer.header.stamp == stamp:
            return writer
        found = self._logs(block)
        if (newest := found.newest) is None:
            raise ObjectNotFoundError(f"block {block}: the volume {self.id} has no replica")
        found.refuse_older(block, stamp)
        if newest < stamp:
            raise ConflictError(f"block {block} has stamp {newest}, not {stamp}; fence it first")
        return self._loaded(block, stamp, found)

    def _loaded(self, block: BlockId, stamp: Stamp, found: _Logs) -> Log:
        """Return a log as it is now.

        Raises:
            FileNotFoundError: It was deleted meanwhile.
        """
        newer = sorted(one for one in found.suffixes if one > stamp)
        writer = self._writers.get(block)
        if writer is not None and writer.header.stamp == stamp and not newer:
            return writer
        ends, left, key = dict[Stamp, int](), NEVER_CUT, (block, stamp)
        for one in newer:
            head, file = Log.headed(self.path(block), block, one)
            head.read_slot(file)
            os.close(file)
            left = min(left, head.slot.lowest_cut)
            ends = {base.stamp: base.end for base in head.header.bases} | ends
            ends[head.header.source] = head.header.source_end
        if newer and stamp not in ends:  # a stale writer may have written behind what the fence has read
            raise StaleReplicaError(f"block {block}: the log of {stamp} on volume {self.id} was replaced")
        limit = ends.get(stamp)
        with self._reading:
            log = self._read.pop(key, None)
        if log is None or log.limit != limit or not log.refresh():
            log = Log.load(self.path(block), block, stamp, limit=limit)
        if left < log.length_bytes:
            log.cut(left)
            log.durable_bytes = left
        if not log.damage:
            with self._reading:
                self._read[key] = log
                kept = sum(len(one.extents) + _OF_A_LOG for one in self._read.values())
                while kept > _KEPT and len(self._read) > 1:
                    kept -= len(self._read.popitem(last=False)[1].extents) + _OF_A_LOG
        return log

    def _source(self, block: BlockId, found: _Logs, committed: Stamp) -> Stamp:
        """Return the stamp of the log that a fence continues."""
        if (newest := found.newest) is None:
            raise ObjectNotFoundError(f"block {block}: the volume {self.id} has no replica")
        if newest < committed:
            raise StaleReplicaError(
                f"block {block}: the replica on volume {self.id} has stamp {newest}; it missed {committed}"
            )
        return newest

    def _new_log(self, block: BlockId, stamp: Stamp, committed: Stamp | None) -> _Logs:
        """Make a log, with `committed` as continuation of the newest one, and return what is there then.

        If another process has made it meanwhile, that one stays.

        Raises:
            FencedError: There is a newer log or claim.
        """
        folder, name = self.path(block), log_name(self.path(block), stamp)
        claim = Path(f"{name}.{secrets.token_hex(4)}.new")
        os.close(os.open(claim, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            self._share(claim)
            source = None if committed is None else self._fenced(block, stamp, committed)
            writer = LogWriter.begin((folder, block, stamp), source, claim, self._disk)
            with suppress(FileExistsError):
                self._disk.link(claim, Path(name + PEN))
                self._writers[block] = writer
            self._disk.sync_directory(Path(folder))
        except Exception:
            self.drop_writer(block)  # of a name that may not be durable: only a fence goes on from it
            with suppress(OSError):
                self._disk.unlink(claim)
            self._logs(block).refuse_older(block, stamp)  # a newer fence has deleted what this one reads
            raise
        self._disk.unlink(claim)
        found = self._logs(block)
        if found.top(stamp) > stamp:
            self.drop_writer(block)
        found.refuse_older(block, stamp)
        return found

    def _fenced(self, block: BlockId, stamp: Stamp, committed: Stamp) -> Log:
        """Fence all older logs, and return the newest one with all its bytes read."""
        folder, found = self.path(block), self._logs(block)
        found.refuse_older(block, stamp)
        for one, suffix in found.suffixes.items():
            if suffix == PEN and one < stamp:
                with suppress(FileNotFoundError):  # another fence has renamed it
                    self._disk.rename(Path(log_name(folder, one) + PEN), Path(log_name(folder, one) + FENCED))
        self._disk.sync_directory(Path(folder))
        newest, writer = self._source(block, found, committed), self._writers.get(block)
        limit = writer.durable_end if writer and writer.is_failed and writer.header.stamp == newest else None
        self.drop_writer(block)
        return Log.load(folder, block, newest, limit=limit, is_verified=True)

    def _delete_old(self, block: BlockId, stamp: Stamp, committed: Stamp, found: _Logs) -> None:
        """Delete the logs that neither a stamp needs nor readers, who need the committed one."""
        keep, folder = {stamp}, self.path(block)
        for one in {stamp, committed} & found.suffixes.keys():
            log, file = Log.headed(folder, block, one)
            os.close(file)
            if log.header.damage:
                return
            keep |= {base.stamp for base in log.header.bases} | {one}
        for one in sorted(found.suffixes.keys() - keep):
            log, file = Log.headed(folder, block, one)
            os.close(file)
            if log.header.source == committed:  # it has how far the committed one is read
                keep.add(one)
        # The newest first: the others are not read without it.
        old = sorted(found.suffixes.keys() - keep, reverse=True)
        names = [log_name(folder, one) + found.suffixes[one] for one in old]
        for path in [*names, *(f"{folder}/{name}" for _, name in found.claims)]:
            with suppress(OSError):
                self._disk.unlink(Path(path))

    def _move(self, block: BlockId, stamp: Stamp, target: Path) -> bool:
        """Move a replica away that is not newer than a stamp; return whether there was one."""
        folder = Path(self.path(block))
        found = self._logs(block)
        for path in [folder / name for at, name in found.claims if at > stamp]:
            with suppress(FileNotFoundError):  # its fence goes on
                if path.stat().st_mtime < time.time() - _LEFT_OVER_S:
                    self._disk.unlink(path)
                    found = self._logs(block)
        if found.top(stamp) > stamp or not folder.is_dir():
            return False
        for one in (target.parent.parent, target.parent):
            self._make_folder(one)
        self._disk.rename(folder, target)
        for one in (folder.parent, target.parent):
            self._disk.sync_directory(one)
        if _logs_in(str(target)).top(stamp) > stamp:  # a fence came between
            self._disk.rename(target, folder)
            return False
        self.drop_writer(block)
        return found.newest is not None

    def _make_folder(self, path: Path) -> None:
        """Make a folder, unless it is there; a crash leaves none that other users cannot write."""
        if path.is_dir():
            return
        made = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        made.mkdir()
        self._share(made, self._mode)
        try:
            self._disk.rename(made, path)
        except OSError:
            made.rmdir()
            if not path.is_dir():
                raise
        try:
            self._disk.sync_directory(path.parent)
        except OSError:
            path.rmdir()  # the next call makes it again
            raise

    def _share(self, path: Path, mode: int | None = None) -> None:
        """Give a new file the permissions of the volume's directory, where the file system has some."""
        with suppress(PermissionError):
            path.chmod(self._mode & 0o666 if mode is None else mode)

    def _stored(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _store(self, name: str, text: str) -> str:
        """Store a small file durably, unless another process does; return what it has."""
        path = self._folder / name
        made = path.with_name(f"{name}.{secrets.token_hex(4)}.new")
        made.write_text(text)
        self._share(made)
        with made.open() as file:
            self._disk.sync(file.fileno())
        with suppress(FileExistsError):
            self._disk.link(made, path)
        self._disk.unlink(made)
        self._disk.sync_directory(self._folder)
        return path.read_text()


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - a path would cost more than the call
    except (FileNotFoundError, NotADirectoryError):
        return []


def _logs_in(folder: str) -> _Logs:
    """Return the files of a block's folder."""
    found = _Logs({}, [])
    for name in _names_in(folder):
        if (match := _NAME.fullmatch(name)) is not None:
            stamp, suffix = Stamp(int(match[1]), int(match[2])), match[3]
            if suffix.endswith(".new"):
                found.claims.append((stamp, name))
            else:
                found.suffixes[stamp] = suffix
    return found


def _blocks_in(folder: str) -> list[BlockId]:
    """Return the blocks that a directory has folders of, in order."""
    return sorted(BlockId(int(name)) for name in _names_in(folder) if name.isdecimal())
