"""The mount table: directories of a journal's tree whose new files are in another journal, a satellite.

It is one row of the default journal. An entry that makes a name there carries the version of the table that
its writer has read, and is refused with another one. So no name is made in a mounted directory by a process
that does not know of the mount.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import (
    ConflictError,
    DirectoryNotEmptyError,
    InvalidInputError,
    MountsChangedError,
    ObjectNotFoundError,
)
from lockgate.storage_core.files.namespace.rows import Inode
from lockgate.storage_core.files.namespace.tree_paths import directory, parse_path
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Row, State


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A directory whose new files are in a satellite.

    Attributes:
        prefix: The directory, which stays in the tree of the default journal.
        journal: Name of the satellite's journal in the settings.
        identity: Identity of that journal.
        added_s: When it was added, by the clock of the default journal.
        cut_s: Since when the default journal has no file there; None: both journals are read.
    """

    prefix: str
    satellite: str
    journal: str
    identity: str
    added_s: float
    cut_s: float | None = None

    def has(self, path: str) -> bool:
        """Return whether a path is below the directory."""
        return path.startswith(f"{self.prefix}/")


class MountTable(Row, frozen=True):
    """All mounts, as JSON, and the number of changes of them."""

    TABLE: ClassVar = "mount_table"
    KEY: ClassVar = ("name",)

    name: str
    version: int
    mounts: str

    @property
    def all(self) -> tuple[Mount, ...]:
        """The mounts."""
        return _decoded(self.mounts)


NAME: Final = "mounts"
NO_MOUNTS: Final = MountTable(name=NAME, version=0, mounts="[]")


class NamingOp(Op, frozen=True, kw_only=True):
    """A change of names, by a process that has read the mount table.

    Attributes:
        mounts: Version of the table that it has read; None: whatever is mounted.
    """

    mounts: int | None = 0

    def touches(self) -> Iterable[Key]:
        return () if self.mounts is None else [_TABLE_KEY]

    def refuse_other_mounts(self, state: State) -> None:
        """Raise `MountsChangedError` unless the table that was read stands."""
        if self.mounts is not None and (now := _table(state).version) != self.mounts:
            raise MountsChangedError(
                f"the mount table has version {now}, and this process has read version {self.mounts}; "
                "nothing was changed; open the files again, without --journal"
            )


class _MountOp(Op, frozen=True):
    """A change of the table."""

    prefix: str

    def touches(self) -> Iterable[Key]:
        return [_TABLE_KEY]


class AddMount(_MountOp, frozen=True, tag="add-mount"):
    """Add a mount at a directory that exists."""

    satellite: str
    journal: str
    identity: str

    def fold(self, state: State, moment: Moment) -> None:
        if not (names := parse_path(self.prefix)):
            raise InvalidInputError("/ cannot be mounted: it has the directories of all; name one of them")
        table = _table(state)
        refuse_overlap(self.prefix, table.all)
        directory(state.get, names)
        mount = Mount(
            prefix=self.prefix,
            satellite=self.satellite,
            journal=self.journal,
            identity=self.identity,
            added_s=moment.at_s,
        )
        _put(state, table, (*table.all, mount))


class CutMount(_MountOp, frozen=True, tag="cut-mount"):
    """Let a mount end at the satellite: the default journal has nothing there."""

    def fold(self, state: State, moment: Moment) -> None:
        table = _table(state)
        if self.prefix not in {one.prefix for one in table.all}:
            raise ObjectNotFoundError(f"{self.prefix} is no mount; see `lockgate satellite status`")
        if state.has(Inode, parent=directory(state.get, parse_path(self.prefix))):
            raise DirectoryNotEmptyError(
                f"the old side of {self.prefix} is not empty; nothing was changed; wait for the "
                "retention, or run `lockgate satellite move`",
                self.prefix,
            )
        mounts = [replace(one, cut_s=moment.at_s) if one.prefix == self.prefix else one for one in table.all]
        _put(state, table, mounts)


def refuse_overlap(prefix: str, mounts: Iterable[Mount]) -> None:
    """Raise `ConflictError` if a directory is one of those that are mounted, or below or above one."""
    for one in mounts:
        if f"{one.prefix}/".startswith(f"{prefix}/") or one.has(prefix):
            raise ConflictError(
                f"the mount {prefix} overlaps with {one.prefix} of satellite {one.satellite}; nothing was "
                "changed; name another directory"
            )


_TABLE_KEY: Final[Key] = (MountTable, (NAME,))


def _table(state: State) -> MountTable:
    return state.get(MountTable, NAME) or NO_MOUNTS


def _put(state: State, table: MountTable, mounts: Sequence[Mount]) -> None:
    text = msgspec.json.encode(mounts, order="deterministic").decode()
    state.put(MountTable(name=NAME, version=table.version + 1, mounts=text))


@lru_cache
def _decoded(text: str) -> tuple[Mount, ...]:
    return decode_json(text, tuple[Mount, ...])
