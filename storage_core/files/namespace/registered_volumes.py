"""Entries about the volumes that blocks may name as members."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.files.namespace.rows import Member, RegisteredVolume
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, State


class RegisterVolume(Op, frozen=True, tag="register-volume"):
    """Add a volume, or change where it is reached."""

    volume: str
    url: str

    def touches(self) -> Iterable[Key]:
        """Return the volume."""
        return [(RegisteredVolume, (self.volume,))]

    def fold(self, state: State, moment: Moment) -> None:
        """Store the volume; its time stays that of its first entry, and a lost one stays lost."""
        known = state.get(RegisteredVolume, self.volume)
        if known is None:
            state.put(RegisteredVolume(volume=self.volume, url=self.url, added_s=moment.at_s))
        else:
            state.put(msgspec.structs.replace(known, url=self.url))


class DeclareLost(Op, frozen=True, tag="declare-lost"):
    """Take a volume out of use, or into use again.

    Attributes:
        is_lost: Whether it is lost.
    """

    volume: str
    is_lost: bool

    def touches(self) -> Iterable[Key]:
        """Return the volume."""
        return [(RegisteredVolume, (self.volume,))]

    def fold(self, state: State, moment: Moment) -> None:
        """Store when it was lost; a second declaration changes nothing."""
        known = state.get(RegisteredVolume, self.volume)
        if known is None:
            raise ObjectNotFoundError(
                f"volume {self.volume} is not registered; nothing was changed; see `lockgate volumes list`"
            )
        if (known.lost_s is not None) is not self.is_lost:
            state.put(msgspec.structs.replace(known, lost_s=moment.at_s if self.is_lost else None))


class ForgetVolume(Op, frozen=True, tag="forget-volume"):
    """Remove a volume that is a member of no block."""

    volume: str

    def touches(self) -> Iterable[Key]:
        """Return the volume."""
        return [(RegisteredVolume, (self.volume,))]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Delete the volume."""
        known = state.get(RegisteredVolume, self.volume)
        if state.has(Member, volume=self.volume):
            raise ConflictError(f"volume {self.volume} is a member of blocks; it stays registered")
        if known is not None:
            state.delete(known)
