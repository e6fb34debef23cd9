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
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

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
from lockgate.storage_core.files.volumes.directory.volume_folder import (
    BlockLogs,
    VolumeFolder,
    blocks_in,
    logs_in,
)
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import VolumeId, check_limit
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated

LOG: Final = logging.getLogger("lockgate.files")
_LOCKS: Final = 256
_KEPT: Final = 2**18
"""Extents of logs, in a volume's memory: some 15 MiB."""
_OF_A_LOG: Final = 2**10
"""What a log itself takes, as a number of extents: so that at most 256 are kept."""
_LEFT_OVER_S: Final = 3600.0
"""Age of a claim of a dead process, and of a replica that one has not deleted to its end."""


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


class DirectoryVolume(VolumeFolder):
    """A `Volume` in a directory; see `VolumeFolder` for its arguments.

    Source: docs/internals/files.md, "Volumes".
    """

    def __init__(self, folder: Path, *, volume: VolumeId | None = None, disk: Disk | None = None) -> None:
        super().__init__(folder, volume=volume, disk=disk)
        self.locks = [threading.Lock() for _ in range(_LOCKS)]
        self._writers: dict[BlockId, LogWriter] = {}
        self._read: OrderedDict[tuple[BlockId, Stamp], Log] = OrderedDict()
        self._reading = threading.Lock()
        self._listed: list[BlockId] | None = None

    def close(self) -> None:
        """Close the logs that are open, after the calls that use them."""
        for block in list(self._writers):
            with self.locks[block % _LOCKS]:
                self.drop_writer(block)

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
                self.make_folder(Path(self.path(block)))
                found = self._new_log(block, stamp, None)
                if len(found.suffixes) > 1:
                    self.drop_writer(block)
                    self.disk.unlink(Path(log_name(self.path(block), stamp) + PEN))
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
                try:
                    log = self._read.get((block, stamp))
                    if log is None or log.state is ReplicaState.WRITING or not log.has_pen():
                        found = self._logs(block)
                        if stamp not in found.suffixes:
                            break
                        log = self._loaded(block, stamp, found)
                    return log.read(offset, size)
                except RecordVersionError:
                    raise
                except (MalformedRecordError, FileNotFoundError) as error:
                    if is_last:  # else a fence may have deleted the log meanwhile
                        raise MalformedRecordError(f"block {block}, volume {self.id}: {error}") from error
                    with self._reading:
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
            if replica is not None and found.suffixes.get(replica.stamp) == FENCED:
                return replace(replica, is_fenced=True)
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
            deleted = self.folder / "deleted"
            is_there = self._move(block, stamp, deleted / f"{block:020d}.{secrets.token_hex(4)}")
            with suppress(FileNotFoundError):
                for path in deleted.iterdir():
                    is_own = path.name.startswith(f"{block:020d}.")
                    if is_own or path.stat().st_ctime < time.time() - _LEFT_OVER_S:
                        self.disk.remove_tree(path)
            return is_there

    def quarantine(self, block: BlockId, stamp: Stamp) -> bool:
        """Set a damaged replica aside; one that is newer than the stamp stays."""
        with _Call(self, "quarantine", block):
            if (newest := self._logs(block).newest) is None:
                return False
            with suppress(OSError):
                os.close(Log.headed(self.path(block), block, newest)[1])  # a newer program's stays
            folder = self.folder / "quarantine" / f"{block:020d}"
            return self._move(block, stamp, folder / secrets.token_hex(4))

    def quarantined(self, after: BlockId | None, limit: int) -> tuple[BlockId, ...]:
        """Return the blocks of the next replicas that are set aside, or were never made to their end."""
        with translated("quarantined", str(self.folder), changes=False):
            check_limit(limit)
            aside = set(blocks_in(f"{self.folder}/quarantine"))
            blocks = sorted(aside.union(blocks_in(self.blocks)))
            left = blocks[0 if after is None else bisect_right(blocks, after) :]
            found = (one for one in left if one in aside or not logs_in(self.path(one)).suffixes)
            return tuple(itertools.islice(found, limit))

    def discard(self, block: BlockId) -> bool:
        """Delete the replica of a block that is set aside, and what a creation that died has left of it."""
        path, made = self.folder / "quarantine" / f"{block:020d}", Path(self.path(block))
        with _Call(self, "discard", block):
            is_there = path.is_dir()
            if is_there:
                self.disk.remove_tree(path)
            is_unmade = made.is_dir() and not logs_in(str(made)).suffixes
        if is_unmade:
            self.delete(block, Stamp())
        return is_there or (is_unmade and not made.is_dir())

    def replicas(self, after: BlockId | None, limit: int) -> tuple[Replica, ...]:
        """Return the next replicas in the order of their blocks."""
        with translated("replicas", str(self.folder), changes=False):
            if after is None or self._listed is None:
                self._listed = blocks_in(self.blocks)
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

    def path(self, block: BlockId) -> str:
        """Return the folder of a block."""
        return f"{self.blocks}/{block:020d}"

    def drop_writer(self, block: BlockId, *, is_fenced: bool = False) -> None:
        """Forget the writer of a block; with `is_fenced`, only one that was fenced."""
        writer = self._writers.get(block)
        if writer is not None and (writer.is_fenced or not is_fenced):
            del self._writers[block]
            writer.release()

    def _logs(self, block: BlockId) -> BlockLogs:
        found = logs_in(self.path(block))
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

    def _loaded(self, block: BlockId, stamp: Stamp, found: BlockLogs) -> Log:
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

    def _source(self, block: BlockId, found: BlockLogs, committed: Stamp) -> Stamp:
        """Return the stamp of the log that a fence continues."""
        if (newest := found.newest) is None:
            raise ObjectNotFoundError(f"block {block}: the volume {self.id} has no replica")
        if newest < committed:
            raise StaleReplicaError(
                f"block {block}: the replica on volume {self.id} has stamp {newest}; it missed {committed}"
            )
        return newest

    def _new_log(self, block: BlockId, stamp: Stamp, committed: Stamp | None) -> BlockLogs:
        """Make a log, with `committed` as continuation of the newest one, and return what is there then.

        If another process has made it meanwhile, that one stays.

        Raises:
            FencedError: There is a newer log or claim.
        """
        folder, name = self.path(block), log_name(self.path(block), stamp)
        claim = Path(f"{name}.{secrets.token_hex(4)}.new")
        os.close(os.open(claim, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            self.share(claim)
            source = None if committed is None else self._fenced(block, stamp, committed)
            writer = LogWriter.begin((folder, block, stamp), source, claim, self.disk)
            with suppress(FileExistsError):
                self.disk.link(claim, Path(name + PEN))
                self._writers[block] = writer
            self.disk.sync_directory(Path(folder))
        except Exception:
            self.drop_writer(block)  # of a name that may not be durable: only a fence goes on from it
            with suppress(OSError):
                self.disk.unlink(claim)
            self._logs(block).refuse_older(block, stamp)  # a newer fence has deleted what this one reads
            raise
        self.disk.unlink(claim)
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
                    self.disk.rename(Path(log_name(folder, one) + PEN), Path(log_name(folder, one) + FENCED))
        self.disk.sync_directory(Path(folder))
        newest, writer = self._source(block, found, committed), self._writers.get(block)
        limit = writer.durable_end if writer and writer.is_failed and writer.header.stamp == newest else None
        self.drop_writer(block)
        return Log.load(folder, block, newest, limit=limit, is_verified=True)

    def _delete_old(self, block: BlockId, stamp: Stamp, committed: Stamp, found: BlockLogs) -> None:
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
                self.disk.unlink(Path(path))

    def _move(self, block: BlockId, stamp: Stamp, target: Path) -> bool:
        """Move a replica away that is not newer than a stamp; return whether there was one."""
        folder = Path(self.path(block))
        found = self._logs(block)
        for path in [folder / name for at, name in found.claims if at > stamp]:
            with suppress(FileNotFoundError):  # its fence goes on
                if path.stat().st_mtime < time.time() - _LEFT_OVER_S:
                    self.disk.unlink(path)
                    found = self._logs(block)
        if found.top(stamp) > stamp or not folder.is_dir():
            return False
        for one in (target.parent.parent, target.parent):
            self.make_folder(one)
        self.disk.rename(folder, target)
        for one in (folder.parent, target.parent):
            self.disk.sync_directory(one)
        if logs_in(str(target)).top(stamp) > stamp:  # a fence came between
            self.disk.rename(target, folder)
            return False
        self.drop_writer(block)
        return found.newest is not None
