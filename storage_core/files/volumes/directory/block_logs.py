"""The names in a volume's directory: which blocks it has, and which logs and claims of each."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from lockgate.storage_core.errors import FencedError
from lockgate.storage_core.files.volumes.directory.log import FENCED
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.stamp import Stamp

_NAME: Final = re.compile(r"([0-9]{18})-([0-9]{20})(\.log|\.fenced|\.[0-9a-f]+\.new)")


class BlockLogs(NamedTuple):
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


def names_in(folder: str) -> list[str]:
    """Return the names in a directory; none if it is not there."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - a path would cost more than the call
    except (FileNotFoundError, NotADirectoryError):
        return []


def logs_in(folder: str) -> BlockLogs:
    """Return the files of a block's folder."""
    found = BlockLogs({}, [])
    for name in names_in(folder):
        if (match := _NAME.fullmatch(name)) is not None:
            stamp, suffix = Stamp(int(match[1]), int(match[2])), match[3]
            if suffix.endswith(".new"):
                found.claims.append((stamp, name))
            else:
                found.suffixes[stamp] = suffix
    return found


def blocks_in(folder: str) -> list[BlockId]:
    """Return the blocks that a directory has folders of, in order."""
    return sorted(BlockId(int(name)) for name in names_in(folder) if name.isdecimal())
