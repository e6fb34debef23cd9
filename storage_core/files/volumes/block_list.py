"""The blocks in a volume's directory, its pages of replicas, their space, and which of them memory keeps."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import MalformedRecordError, ObjectNotFoundError, RecordVersionError
from lockgate.storage_core.files.volumes.local_replica import LocalReplica
from lockgate.storage_core.files.volumes.protocol import Usage, check_limit
from lockgate.storage_core.files.volumes.replica import BlockId, Replica, ReplicaState
from lockgate.storage_core.stamp import Stamp

KEPT_FRAMES: Final = 2**18
"""Frames of sealed replicas in a volume's memory: some 40 MiB. To load 100,000 takes half a second."""
_FRAMES_OF_A_REPLICA: Final = 8
"""What a replica itself takes, as a number of frames."""
_KEPT_REPLICAS: Final = 2
"""Replicas that are kept whatever they take: a reader and a verification each ask again for their block."""


class BlockList:
    """The blocks of a directory in order, kept by the process that owns it."""

    def __init__(self, folder: Path) -> None:
        self._blocks = blocks_in(folder)

    def after(self, block: BlockId | None, limit: int) -> Sequence[BlockId]:
        """Return the next blocks."""
        return page(self._blocks, block, limit)

    def add(self, block: BlockId) -> None:
        """Add a block, unless it is there."""
        at = bisect_left(self._blocks, block)
        if self._blocks[at : at + 1] != [block]:
            self._blocks.insert(at, block)

    def remove(self, block: BlockId) -> None:
        """Remove a block."""
        at = bisect_right(self._blocks, block) - 1
        if at >= 0 and self._blocks[at] == block:
            del self._blocks[at]


class RecentReplicas:
    """Replicas in memory that can be loaded again, by their last use. Safe to use from several threads."""

    def __init__(self) -> None:
        self._frames: dict[BlockId, int] = {}
        self._total = 0
        self._lock = threading.Lock()

    def use(self, replica: LocalReplica, forget: Callable[[BlockId], bool]) -> None:
        """Note a use, and forget the replicas before it that are too many.

        Args:
            replica: The replica that is used.
            forget: Drops a replica from memory, or returns False if it is in use.
        """
        block, frames = replica.header.block, replica.frame_count + _FRAMES_OF_A_REPLICA
        with self._lock:
            self._total += frames - self._frames.pop(block, 0)
            self._frames[block] = frames
            if self._total <= KEPT_FRAMES:
                return
            for old in list(self._frames)[:-_KEPT_REPLICAS]:
                if forget(old):
                    self._total -= self._frames.pop(old)
                if self._total <= KEPT_FRAMES:
                    return


def blocks_in(folder: Path) -> list[BlockId]:
    """Return the blocks of a directory, in order."""
    with os.scandir(folder) as entries:
        names = (entry.name.removesuffix(".head") for entry in entries if entry.name.endswith(".head"))
        return sorted(BlockId(int(name)) for name in names if name.isdecimal())


def page(blocks: Sequence[BlockId], after: BlockId | None, limit: int) -> Sequence[BlockId]:
    """Return the next blocks of an ordered list."""
    check_limit(limit)
    begin = 0 if after is None else bisect_right(blocks, after)
    return blocks[begin : begin + limit]


def listed(block: BlockId, path: Path, view: Callable[[BlockId], Replica | None]) -> Replica | None:
    """Return a replica for a page, None if it was deleted meanwhile.

    Args:
        block: Its block.
        path: Its path, without a suffix.
        view: Returns a replica that is not sealed, or whose log is too short.
    """
    try:
        return LocalReplica.outline(path) or view(block)
    except RecordVersionError:
        raise
    except (MalformedRecordError, ObjectNotFoundError):
        return Replica(block, Stamp(), ReplicaState.SUSPECT, 0, 0)


def usage_of(folder: Path) -> Usage:
    """Return the space that the files of a directory take, and what its file system has left."""
    used = 0
    for path, _, names in os.walk(folder):  # with the replicas that are set aside
        for name in names:
            try:
                used += (Path(path) / name).stat().st_size
            except FileNotFoundError:
                continue  # it was deleted or replaced meanwhile
    found = os.statvfs(folder)
    return Usage(used_bytes=used, free_bytes=found.f_bavail * found.f_frsize)
