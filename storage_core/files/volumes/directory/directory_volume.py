"""A volume in a directory that any number of processes, and machines with the same mount, use at once.

    volume.id, journal.id
    blocks/<block>/<stamp>.log       a log; only a writer whose log has this name may count on it
    blocks/<block>/<stamp>.fenced    a log whose writer was fenced
    blocks/<block>/<stamp>.*.new     the claim of a fence or a trim: a log that is being made
    staging/<block>.*/               a replica that is being made

An order of steps stops a stale writer, without a lock. A writer syncs its log, then looks whether the log
still has its name; only then its flush counts. A fence makes its claim, renames the older logs, copies the
newest one, gives its log its name, and looks for newer claims; then it deletes the older logs. So a flush
that counts was durable before a fence read it. Of two fences, the older one sees the claim of the newer one,
or the newer one sees the log of the older one.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
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
from lockgate.storage_core.files.volumes.directory.log_format import Header
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
_TRIES: Final = 16
"""Of making a folder in one that other processes remove when it is empty."""
_LEFT_OVER_S: Final = 3600.0
"""Age of a claim of a dead process, and of a replica that one has not made to its end."""


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
        self._read: OrderedDict[BlockId, Log] = OrderedDict()
        self._reading = threading.Lock()
        self._staging = folder / "staging"
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
            try:
                found = self._logs(block)
                found.refuse_older(block, stamp)
                if found.newest is None:
                    self._place(block, stamp, path)
                    return
                os.close(Log.headed(self.path(block), block, found.newest)[1])  # a newer program's stays
                self.disk.rename(path, Path(log_name(self.path(block), stamp) + PEN))
            finally:
                self._unstage(path.parent)
            self.disk.sync_directory(Path(self.path(block)))
            found = self._logs(block)
            found.refuse_older(block, stamp)
            self._delete_old(block, stamp, found)

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
                found = self._new_log(block, stamp, lambda: self._fenced(block, stamp, committed))
                self._delete_old(block, stamp, found)
            return self._at(block, stamp).view()

    def delete(self, block: BlockId, stamp: Stamp, token: str | None = None) -> bool:
        """Delete a replica that is not newer than the stamp; return whether there was one."""
        with _Call(self, "delete", block):
            is_there = self._remove(block, stamp, token)
            with suppress(FileNotFoundError):
                for path in self._staging.iterdir() if self._staging.is_dir() else ():
                    if path.stat().st_ctime < time.time() - _LEFT_OVER_S:
                        self._unstage(path)
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

    def _source(self, block: BlockId, found: BlockLogs, committed: Stamp) -> Stamp:
        """Return the stamp of the log that a fence continues."""
        if (newest := found.newest) is None:
            raise ObjectNotFoundError(f"block {block}: the volume {self.id} has no replica")
        if newest < committed:
            raise StaleReplicaError(
                f"block {block}: the replica on volume {self.id} has stamp {newest}; it missed {committed}"
            )
        return newest

    def _staged(
        self, block: BlockId, stamp: Stamp, pieces: Iterable[bytes] = (), *, is_sealed: bool = False
    ) -> tuple[Path, LogWriter]:
        """Make a log in a new folder of `staging`, where no call reads it; return its path and writer."""
        made = self._staging_folder(block)
        try:
            path = self._make_file(Path(log_name(str(made), stamp) + PEN))
            header = Header(block, stamp, os.urandom(8))
            log = LogWriter.begin(path, self.disk, (self.path(block), header), pieces)
            if is_sealed:
                log.seal()
                log.sync()
            self.disk.sync_directory(made)
        except Exception:
            self._unstage(made)
            raise
        return path, log

    def _staging_folder(self, block: BlockId) -> Path:
        """Make a folder in `staging`; `_unstage` removes that one with its last folder."""
        made = self._staging / f"{block:020d}.{secrets.token_hex(4)}"
        for _ in range(_TRIES):
            self.make_folder(self._staging, is_durable=False)
            with suppress(FileNotFoundError):  # another process has removed it, as empty
                made.mkdir()
                break
        self.share(made, self.mode)
        return made

    def _unstage(self, made: Path) -> None:
        """Remove a folder of `staging`, and that one if it has no other."""
        self.disk.remove_tree(made)
        with suppress(OSError):
            self._staging.rmdir()

    def _make_file(self, path: Path) -> Path:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self.share(path)
        return path

    def _place(self, block: BlockId, stamp: Stamp, path: Path) -> None:
        """Make the folder of a staged log that of a block, unless another process has made one."""
        folder = Path(self.path(block))
        try:
            self.disk.rename(path.parent, folder)
        except OSError:
            self.drop_writer(block)
            self._unstage(path.parent)
            if self._logs(block).newest is None:
                raise
        self._unstage(path.parent)
        try:
            self.disk.sync_directory(folder.parent)
        except OSError:
            self.drop_writer(block)
            self._remove(block, stamp)  # the next call makes it again
            raise

    def _new_log(
        self, block: BlockId, stamp: Stamp, source: Callable[[], tuple[Log, int, Stamp]]
    ) -> BlockLogs:
        """Make a log of the bytes of another one, and return what is there then.

        Args:
            block: The block.
            stamp: Stamp of the log; no other process makes one of it.
            source: Returns the other one, how many of its bytes count, and the stamp of the last commit.

        Raises:
            FencedError: There is a newer log or claim.
        """
        folder, name = self.path(block), log_name(self.path(block), stamp)
        claim = self._make_file(Path(f"{name}.{secrets.token_hex(4)}.new"))
        try:
            log, length, committed = source()
            older, older_bytes = log.header.older, min(log.header.older_bytes, length)
            if log.header.stamp == committed:
                older, older_bytes = committed, length
            header = Header(block, stamp, os.urandom(8), older, older_bytes, log.damage)
            pieces = log.pieces(length)
            writer = LogWriter.begin(claim, self.disk, (folder, header), pieces, log.acknowledged_bytes)
            self.disk.rename(claim, Path(name + PEN))
            self.drop_writer(block)
            self._writers[block] = writer
            self.disk.sync_directory(Path(folder))
        except BaseException as error:
            self.drop_writer(block)  # of a name that may not be durable: only a fence goes on from it
            with suppress(OSError):
                self.disk.unlink(claim)
            if isinstance(error, Exception):  # a newer fence has deleted what this one reads
                self._logs(block).refuse_older(block, stamp)
            raise
        found = self._logs(block)
        if found.top(stamp) > stamp:
            self.drop_writer(block)
        found.refuse_older(block, stamp)
        return found

    def _fenced(self, block: BlockId, stamp: Stamp, committed: Stamp) -> tuple[Log, int, Stamp]:
        """Fence all older logs; return the newest one with all its bytes read, and what of it counts."""
        folder, found = self.path(block), self._logs(block)
        found.refuse_older(block, stamp)
        for name in [name for one, name in found.claims if one < stamp]:
            with suppress(OSError):  # of a fence that died, or is refused: its room is needed for the copy
                self.disk.unlink(Path(folder) / name)
        for one, suffix in found.suffixes.items():
            if suffix == PEN and one < stamp:
                with suppress(FileNotFoundError):  # another fence has renamed it
                    self.disk.rename(Path(log_name(folder, one) + PEN), Path(log_name(folder, one) + FENCED))
        self.disk.sync_directory(Path(folder))
        self.disk.sync_directory(Path(self.blocks))  # its creation may have died before
        self.disk.outdate(Path(folder))
        newest, writer = self._source(block, found, committed), self._writers.get(block)
        source = Log.load(folder, block, newest, is_verified=True)
        length = source.length_bytes
        if writer is not None and writer.is_failed and writer.header.stamp == newest:
            length = min(length, writer.durable_bytes)
        self.drop_writer(block)
        return source, length, committed

    def _delete_old(self, block: BlockId, stamp: Stamp, found: BlockLogs) -> None:
        """Delete claims and older logs; a damaged one stays while the newest log lacks bytes of it."""
        folder = self.path(block)
        with suppress(OSError):  # a newer fence deletes them
            damage = self._copied_damage(block, stamp)
            old = [(one, name) for one, name in found.logs if one < stamp]
            if damage != "":  # a log that was made with the same damage was copied whole
                old = [one for one in old if damage and self._copied_damage(block, one[0]) == damage]
            for _, name in old:
                self.disk.discard(f"{folder}/{name}")
            for _, name in found.claims:
                self.disk.unlink(f"{folder}/{name}")

    def _copied_damage(self, block: BlockId, stamp: Stamp) -> str | None:
        """Return what was wrong with the bytes that a log was made of; None if its header is damaged."""
        log, file = Log.headed(self.path(block), block, stamp)
        os.close(file)
        return log.header.damage if log.packed else None

    def _remove(self, block: BlockId, stamp: Stamp, token: str | None = None) -> bool:
        """Delete a replica that is not newer than a stamp; return whether there was one.

        Its files are deleted in the folder that was opened: one that is made meanwhile has another folder.
        """
        path = self.path(block)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.check_presence()
            return False
        try:
            found = logs_in(folder)
            for name in [name for at, name in found.claims if at > stamp]:
                with suppress(FileNotFoundError):  # its fence goes on
                    if os.stat(name, dir_fd=folder).st_mtime < time.time() - _LEFT_OVER_S:
                        self.disk.unlink(name, folder)
                        found = logs_in(folder)
            newest = found.newest
            if found.top(stamp) > stamp or (newest and token not in {None, self._token(block, newest)}):
                return False
            self.drop_writer(block)
            for _, name in sorted(found.logs):  # the newest one last: what there is, is whole until then
                self.disk.discard(name, folder)
            found = logs_in(folder)
            if found.newest is not None:  # a fence has come between
                return False
            for _, name in found.claims:
                self.disk.unlink(name, folder)
        finally:
            os.close(folder)
        with suppress(OSError):  # a new replica has come into its place
            os.rmdir(path)  # noqa: PTH106
        self.disk.sync_directory(Path(self.blocks))
        return newest is not None

    def _token(self, block: BlockId, stamp: Stamp) -> str:
        log, file = Log.headed(self.path(block), block, stamp)
        os.close(file)
        return log.view().token
