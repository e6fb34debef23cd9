"""Entries about the volumes that blocks may name as members."""

from __future__ import annotations

from collections.abc import Iterable

from lockgate.storage_core.errors import ConflictError
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
        """Store the volume; its time stays that of its first entry."""
        known = state.get(RegisteredVolume, self.volume)
        added_s = moment.at_s if known is None else known.added_s
        state.put(RegisteredVolume(volume=self.volume, url=self.url, added_s=added_s))


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
