"""The files of the replicas in a directory: made, replaced and deleted.

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

import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import ObjectNotFoundError, StaleReplicaError
from lockgate.storage_core.files.volumes.directory.log import FENCED, PEN, Log, log_name
from lockgate.storage_core.files.volumes.directory.log_format import Header
from lockgate.storage_core.files.volumes.directory.log_writer import LogWriter
from lockgate.storage_core.files.volumes.directory.volume_folder import BlockLogs, VolumeFolder, logs_in
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.stamp import Stamp

_TRIES: Final = 16
"""Of making a folder in one that other processes remove when it is empty."""
_LEFT_OVER_S: Final = 3600.0
"""Age of a claim of a dead process, and of a replica that one has not made to its end."""


class ReplicaFiles(VolumeFolder):
    """The files of replicas; see `VolumeFolder` for its arguments.

    Each call is made under the lock of its block.
    """

    def __init__(self, folder: Path, *, volume: VolumeId | None = None, disk: Disk | None = None) -> None:
        super().__init__(folder, volume=volume, disk=disk)
        self._writers: dict[BlockId, LogWriter] = {}
        self._staging = folder / "staging"

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

    def _clear_staging(self) -> None:
        """Delete what dead processes have left in `staging`."""
        with suppress(FileNotFoundError):
            for path in self._staging.iterdir() if self._staging.is_dir() else ():
                if path.stat().st_ctime < time.time() - _LEFT_OVER_S:
                    self._unstage(path)

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

    def _replace(self, block: BlockId, stamp: Stamp, path: Path) -> None:
        """Give a staged log its name, also in the place of a damaged or older one, at once."""
        try:
            if self._logs(block).newest is None:
                self._remove(block, stamp)  # what is left of a deletion that died, and of a fence before it
            found = self._logs(block)
            found.refuse_older(block, stamp)
            if found.newest is None:
                self._place(block, stamp, path)
                return
            self._headed(block, found.newest)  # that of a newer program stays
            self.disk.rename(path, Path(log_name(self.path(block), stamp) + PEN))
        finally:
            self._unstage(path.parent)
        self.disk.sync_directory(Path(self.path(block)))
        found = self._logs(block)
        found.refuse_older(block, stamp)
        self._delete_old(block, stamp, found)

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
        for one, name in found.logs:
            if name.endswith(PEN) and one < stamp:
                with suppress(FileNotFoundError):  # another fence has renamed it
                    self.disk.rename(Path(folder) / name, Path(log_name(folder, one) + FENCED))
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
        log = self._headed(block, stamp)
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
            if found.top(stamp) > stamp:
                return False
            if newest and token is not None and token != self._headed(block, newest).view().token:
                return False
            self.drop_writer(block)
            for _, name in found.logs:  # the newest one last: what there is, is whole until then
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

    def _headed(self, block: BlockId, stamp: Stamp) -> Log:
        """Read the header of a log."""
        log, file = Log.headed(self.path(block), block, stamp)
        os.close(file)
        return log
