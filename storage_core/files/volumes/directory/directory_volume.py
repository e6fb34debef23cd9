"""A volume in a directory that any number of processes, and machines with the same mount, use at once."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
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
from lockgate.storage_core.files.volumes.directory.log import FENCED, Log
from lockgate.storage_core.files.volumes.directory.log_writer import LogWriter
from lockgate.storage_core.files.volumes.directory.replica_files import ReplicaFiles
from lockgate.storage_core.files.volumes.directory.volume_folder import blocks_in
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


class DirectoryVolume(ReplicaFiles):
    """A `Volume` in a directory; see `VolumeFolder` for its arguments.

    Source: docs/internals/files.md, "Volumes".
    """

    def __init__(self, folder: Path, *, volume: VolumeId | None = None, disk: Disk | None = None) -> None:
        super().__init__(folder, volume=volume, disk=disk)
        self.locks = [threading.Lock() for _ in range(_LOCKS)]
        self._read: OrderedDict[BlockId, Log] = OrderedDict()
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
                path, self._writers[block] = self._staged(block, stamp)
                self._place(block, stamp, path)
            return self._at(block, stamp).view()

    def store(self, block: BlockId, stamp: Stamp, pieces: Iterable[bytes]) -> None:
        """Make a whole sealed replica, also in the place of a damaged or older one."""
        with translated("store", self.path(block), changes=True):
            self.check_presence()
            path, log = self._staged(block, stamp, pieces, is_sealed=True)
            log.release()
        with _Call(self, "store", block):
            self._replace(block, stamp, path)

    def append(self, block: BlockId, stamp: Stamp, offset: int, data: bytes) -> int:
        """Append bytes at the end of a replica; bytes that stand already are compared.

        A fence by another process is found by the next flush at the latest.
        """
        with _Call(self, "append", block):
            return self._writer_at(block, stamp).append(offset, data)

    def flush(self, block: BlockId, stamp: Stamp) -> int:
        """Make all received bytes durable, and return their number."""
        with _Call(self, "flush", block):
            return self._writer_at(block, stamp).flush()

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
            log = self._writer_at(block, stamp)
            if not 0 <= length_bytes <= log.length_bytes:
                raise ConflictError(f"{log.name}: {log.length_bytes} bytes cannot be cut to {length_bytes}")
            if length_bytes < log.length_bytes:
                log.flush()
                log.acknowledged_bytes = min(log.acknowledged_bytes, length_bytes)
                self._new_log(block, stamp, lambda: (log, length_bytes, Stamp()))
            return self._at(block, stamp).view()

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
                    log = self._read.get(block)
                    if log is None or log.state is ReplicaState.WRITING or log.suffix == FENCED:
                        newest = self._logs(block).newest
                        if newest is None:
                            break
                        log = self._loaded(block, newest)
                    if log.has(stamp):
                        return log.read(stamp, offset, size)
                    if is_last:
                        break
                    with self._reading:  # a client of NFS believes an old name, unless the folder is listed
                        self._read.pop(block, None)
                except RecordVersionError:
                    raise
                except (MalformedRecordError, FileNotFoundError) as error:
                    if is_last:  # else a fence may have deleted the log meanwhile
                        raise MalformedRecordError(f"block {block}, volume {self.id}: {error}") from error
                    with self._reading:
                        self._read.pop(block, None)
            raise StaleReplicaError(f"block {block}: the volume {self.id} has no replica at stamp {stamp}")

    def stat(self, block: BlockId) -> Replica | None:
        """Return a replica, or None if there is none."""
        with _Call(self, "stat", block, changes=False):
            replica, found, before = None, self._logs(block), None
            while found != before and (newest := found.newest) is not None:
                with suppress(FileNotFoundError):
                    replica = self._loaded(block, newest).view()
                before, found = found, self._logs(block)  # a fence may have come meanwhile
            if replica is not None and found.is_fenced(replica.stamp):
                return replace(replica, is_fenced=True)
            return None if found.newest is None else replica  # what is deleted is cut, too

    def fence(self, block: BlockId, stamp: Stamp, committed: Stamp) -> Replica:
        """Refuse older stamps from here on, and return the replica once that is durable."""
        with _Call(self, "fence", block):
            found = self._logs(block)
            found.refuse_older(block, stamp)
            self._source(block, found, committed)
            if found.newest != stamp:
                found = self._new_log(block, stamp, lambda: self._fenced(block, stamp, committed))
                self._delete_old(block, stamp, found)
            return self._at(block, stamp).view()

    def delete(self, block: BlockId, stamp: Stamp, token: str | None = None) -> bool:
        """Delete a replica that is not newer than the stamp; return whether there was one."""
        with _Call(self, "delete", block):
            is_there = self._remove(block, stamp, token)
            self._clear_staging()
            return is_there

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
        return self._loaded(block, stamp)

    def _writer_at(self, block: BlockId, stamp: Stamp) -> LogWriter:
        """Return the writer of a log; raises as `_at`, also where another process has made the log."""
        log = self._at(block, stamp)
        if not isinstance(log, LogWriter):
            raise log.is_made_elsewhere()
        return log

    def _loaded(self, block: BlockId, stamp: Stamp) -> Log:
        """Return the newest log as it is now.

        Raises:
            FileNotFoundError: It was deleted meanwhile.
        """
        writer = self._writers.get(block)
        if writer is not None and writer.header.stamp == stamp:
            return writer
        with self._reading:
            log = self._read.pop(block, None)
        if log is None or log.header.stamp != stamp or not log.refresh():
            log = Log.load(self.path(block), block, stamp)
        if not log.damage:
            with self._reading:
                self._read[block] = log
                kept = sum(len(one.extents) + _OF_A_LOG for one in self._read.values())
                while kept > _KEPT and len(self._read) > 1:
                    kept -= len(self._read.popitem(last=False)[1].extents) + _OF_A_LOG
        return log
