"""The replicas of a directory that are set aside: kept, and neither listed nor served."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from lockgate.storage_core.files.volumes.block_list import page
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.replica import BlockId

NAME: Final = "quarantine"


class Quarantine:
    """The subdirectory of a volume with what is set aside.

    Args:
        folder: Directory of the volume.
        disk: Its calls.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder / NAME
        self._disk = disk

    def take(self, path: Path) -> None:
        """Move the files of a replica here, beside what is here of its block.

        The log goes first: a crash before the header leaves a replica that cannot be read, and the next call
        moves the rest.

        Args:
            path: Path of the replica, without a suffix.
        """
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._disk.sync_directory(self._folder.parent)
        number = next(one for one in count() if not (self._folder / f"{path.name}.{one}.head").exists())
        for suffix in ("log", "head"):
            source = path.with_name(f"{path.name}.{suffix}")
            if source.exists():
                self._disk.replace(source, self._folder / f"{path.name}.{number}.{suffix}")
                self._disk.sync_directory(self._folder)
                self._disk.sync_directory(path.parent)

    def blocks(self, after: BlockId | None, limit: int) -> Sequence[BlockId]:
        """Return the blocks of the next replicas, in order."""
        return page(
            sorted({BlockId(int(path.name.partition(".")[0])) for path in self._heads()}), after, limit
        )

    def discard(self, block: BlockId) -> bool:
        """Delete the replicas of a block; return whether there was one."""
        found = [path for path in self._heads() if path.name.startswith(f"{block:020d}.")]
        for path in found:
            self._disk.unlink(path.with_suffix(".log"))
            self._disk.unlink(path)
        if found:
            self._disk.sync_directory(self._folder)
        return bool(found)

    def _heads(self) -> list[Path]:
        return list(self._folder.glob("*.head"))
