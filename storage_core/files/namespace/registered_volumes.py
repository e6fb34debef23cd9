"""Entries about the volumes that blocks may name as members."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.files.namespace.rows import Member, RegisteredVolume, VolumeState
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, State


class _VolumeOp(Op, frozen=True):
    """A change of one volume."""

    volume: str

    def touches(self) -> Iterable[Key]:
        return [(RegisteredVolume, (self.volume,))]


class RegisterVolume(_VolumeOp, frozen=True, tag="register-volume"):
    """Add a volume, or change where it is reached."""

    url: str

    def fold(self, state: State, moment: Moment) -> None:
        """Store the volume, in use; its time stays that of its first entry."""
        known = state.get(RegisteredVolume, self.volume)
        if known is None:
            state.put(RegisteredVolume(volume=self.volume, url=self.url, added_s=moment.at_s))
        else:
            state.put(msgspec.structs.replace(known, url=self.url, state=VolumeState.IN_USE))


class LeaveVolume(_VolumeOp, frozen=True, tag="leave-volume"):
    """Take a volume out of use: it gets no new blocks and no copies, and its blocks leave it.

    Attributes:
        is_lost: Whether its replicas are gone, and nothing waits for them.
    """

    is_lost: bool

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Store its state; a lost one stays lost."""
        known = state.get(RegisteredVolume, self.volume)
        if known is None:
            raise ObjectNotFoundError(
                f"volume {self.volume} is not registered; nothing was changed; see `lockgate volumes list`"
            )
        if known.state is not VolumeState.LOST:
            left = VolumeState.LOST if self.is_lost else VolumeState.LEAVING
            state.put(msgspec.structs.replace(known, state=left))


class ForgetVolume(_VolumeOp, frozen=True, tag="forget-volume"):
    """Remove a volume that is a member of no block."""

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Delete the volume."""
        known = state.get(RegisteredVolume, self.volume)
        if state.has(Member, volume=self.volume):
            raise ConflictError(f"volume {self.volume} is a member of blocks; it stays registered")
        if known is not None:
            state.delete(known)
