"""The directory of a volume: its id, its journal, and the names, folders and small files in it."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Final, NamedTuple

from lockgate.storage_core.errors import ConflictError, FencedError, StoreUnavailableError
from lockgate.storage_core.files.volumes.directory.log import FENCED
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import Usage, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated

_NAME: Final = re.compile(r"([0-9]{18})-([0-9]{20})(?:\.log|\.fenced|\.[0-9a-f]+\.new)")


class BlockLogs(NamedTuple):
    """The names of a block's logs and claims, in the order of their stamps."""

    logs: list[tuple[Stamp, str]]
    claims: list[tuple[Stamp, str]]

    @property
    def newest(self) -> Stamp | None:
        """Return the stamp of the newest log."""
        return self.logs[-1][0] if self.logs else None

    def top(self, least: Stamp) -> Stamp:
        """Return the newest stamp of a log or a claim, at least a given one."""
        return max([least, *(stamp for stamp, _ in self.logs[-1:] + self.claims[-1:])])

    def is_fenced(self, stamp: Stamp) -> bool:
        """Return whether a log was fenced, also if a trim that came later has made a second one."""
        return any(one == stamp and name.endswith(FENCED) for one, name in self.logs)

    def refuse_older(self, block: BlockId, stamp: Stamp) -> None:
        """Refuse a stamp that is older than a log or a claim, or whose log was fenced.

        Raises:
            FencedError: It is.
        """
        if self.top(stamp) > stamp or self.is_fenced(stamp):
            raise FencedError(
                f"block {block} was fenced at stamp {self.top(stamp)}; the call had {stamp}: a newer writer "
                "has it; stop"
            )


def names_in(folder: str | int) -> list[str]:
    """Return the names in a directory; none if it is not there."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - a path would cost more than the call
    except (FileNotFoundError, NotADirectoryError):
        return []


def logs_in(folder: str | int) -> BlockLogs:
    """Return the files of a block's folder, by its path or as it was opened."""
    found = BlockLogs([], [])
    for name in sorted(names_in(folder)):
        if (match := _NAME.fullmatch(name)) is not None:
            kind = found.claims if name.endswith(".new") else found.logs
            kind.append((Stamp(int(match[1]), int(match[2])), name))
    return found


def blocks_in(folder: str) -> list[BlockId]:
    """Return the blocks that a directory has folders of, in order."""
    return sorted(BlockId(int(name)) for name in names_in(folder) if name.isdecimal())


class VolumeFolder:
    """The directory of a volume.

    Args:
        folder: The directory. What is made below it has its permissions.
        volume: Id of the volume; nothing is made then. By default the volume that is there is opened, and
            made if there is none.
        disk: Calls of the disk.

    Attributes:
        folder: The directory.
        disk: Calls of the disk.
        blocks: Path of the folder of the blocks.
        id: Id of the volume, from its directory.

    Raises:
        StoreUnavailableError: There is another volume, or none; perhaps something is not mounted.
        ConflictError: The directory has the layout of an older Lockgate.
    """

    def __init__(self, folder: Path, *, volume: VolumeId | None = None, disk: Disk | None = None) -> None:
        self.folder = folder
        self.blocks = f"{folder}/blocks"
        self.disk = disk or Disk()
        with translated("open", str(folder), changes=True):
            if volume is None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.mode = S_IMODE(folder.stat().st_mode) if folder.exists() else 0
            names = names_in(str(folder))  # before the id, which is made before the blocks
            found = self.stored("volume.id")
            if "owner.lock" in names or any(name.endswith(".head") for name in names):
                raise ConflictError(
                    f"{folder} has the layout of an older Lockgate, which this one does not read; nothing "
                    "was changed; use another directory"
                )
            if volume is None and found is None and "blocks" not in names:
                found = self.store_text("volume.id", secrets.token_hex(8))
            if found is None or (volume or found) != found:
                raise StoreUnavailableError(
                    f"{folder}: the volume {volume or ''} is expected here, and {found or 'none'} is there; "
                    "nothing was changed; mount it, bring it back, or register it where it is"
                )
            self.id = VolumeId(found)
            if volume is None:
                self.make_folder(Path(self.blocks))

    def claim(self, journal: str) -> None:
        """Give the volume to a journal; another one numbers its blocks alike."""
        with translated("claim", str(self.folder), changes=True):
            found = self.stored("journal.id") or self.store_text("journal.id", journal)
        if found != journal:
            raise ConflictError(
                f"the volume {self.folder} has blocks of the journal {found}, and LOCKGATE_JOURNAL_URL "
                f"names the journal {journal}; nothing was changed; use another directory"
            )

    def answers(self) -> bool:
        """Return whether the directory has this volume."""
        try:
            return self.stored("volume.id") == self.id
        except OSError:
            return False

    def check_presence(self) -> None:
        """Raise `StoreUnavailableError` if the directory has no longer this volume."""
        if not self.answers():
            raise StoreUnavailableError(
                f"{self.folder}: the volume {self.id} is not there any more; nothing was changed; mount it, "
                "or bring it back"
            )

    def usage(self) -> Usage:
        """Return the used and the free space."""
        used = 0
        with translated("usage", str(self.folder), changes=False):
            for path, _, names in os.walk(self.folder):
                for name in names:
                    with suppress(FileNotFoundError):  # it was deleted or renamed meanwhile
                        used += os.stat(f"{path}/{name}").st_size  # noqa: PTH116
            found = os.statvfs(self.folder)
        return Usage(used_bytes=used, free_bytes=found.f_bavail * found.f_frsize)

    def make_folder(self, path: Path, *, is_durable: bool = True) -> None:
        """Make a folder, unless it is there; a crash leaves none that other users cannot write."""
        if path.is_dir():
            return
        made = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        made.mkdir()
        self.share(made, self.mode)
        try:
            self.disk.rename(made, path)
        except OSError:
            made.rmdir()
            if not path.is_dir():
                raise
        if not is_durable:
            return
        try:
            self.disk.sync_directory(path.parent)
        except OSError:
            path.rmdir()  # the next call makes it again
            raise

    def share(self, path: Path, mode: int | None = None) -> None:
        """Give a new file the permissions of the volume's directory, where the file system has some."""
        with suppress(PermissionError):
            path.chmod(self.mode & 0o666 if mode is None else mode)

    def stored(self, name: str) -> str | None:
        """Return the text of a small file; None if there is none."""
        try:
            return (self.folder / name).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def store_text(self, name: str, text: str) -> str:
        """Store a small file durably, unless another process does; return what it has."""
        path = self.folder / name
        made = path.with_name(f"{name}.{secrets.token_hex(4)}.new")
        made.write_text(text)
        self.share(made)
        with made.open() as file:
            self.disk.sync(file.fileno())
        with suppress(FileExistsError):
            self.disk.link(made, path)
        self.disk.unlink(made)
        self.disk.sync_directory(self.folder)
        return path.read_text()
