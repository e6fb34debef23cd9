"""The row of a lease, its states, and the entries that change it. A renewal writes no entry.

Source: journal, "Leases".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal, final

import msgspec

from lockgate.storage_core.errors import FencedError, LeaseHeldError, SafeModeError
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Row, State
from lockgate.storage_core.stamp import Stamp


class Standing(StrEnum):
    """State stored in a lease's row; the effective state also depends on the time (`LeaseState`)."""

    HELD = "held"
    SUSPENDED = "suspended"
    RECOVERING = "recovering"
    FREE = "free"


RENEWABLE: Final = frozenset({Standing.HELD, Standing.RECOVERING})
"""States in which a lease is renewed."""


class Lease(Row, frozen=True):
    """The right of one holder to write one resource.

    Attributes:
        resource: `job:<destination>#<job id>`, `file:<path>`, …
        holder: Name of the process that renews it.
        epoch: Epoch of the stamp with which it was taken.
        sequence: Sequence of that stamp.
        renewed_s: Time of the last renewal. Renewals of all leases of a holder are stored once, in the table
            `holder`; the later of the two times counts.
        soft_s: Age of the renewal at which the lease is late.
        hard_s: Age of the renewal at which the lease has lapsed and recovery may start.
        suspended_until_s: Deadline of a suspended lease.
        detail: Description of the holder, such as its job attempt.
        dropped_s: When its holder renewed others without it; None while each of its renewals renews it.
    """

    TABLE: ClassVar = "lease"
    KEY: ClassVar = ("resource",)
    INDEXES: ClassVar = (("holder",), ("standing", "dropped_s"))
    SOFT: ClassVar = ("renewed_s", "dropped_s")

    resource: str
    holder: str
    epoch: int
    sequence: int
    standing: Standing
    renewed_s: float
    soft_s: float
    hard_s: float
    suspended_until_s: float | None = None
    detail: str = ""
    dropped_s: float | None = None

    @property
    def stamp(self) -> Stamp:
        """Stamp with which it was taken."""
        return Stamp(self.epoch, self.sequence)


class LeaseState(StrEnum):
    """State of a lease at a point in time."""

    HELD = "held"
    SOFT = "soft"
    """Its renewal is late; its holder may be in trouble."""
    SUSPENDED = "suspended"
    """Between two steps: kept without renewals until a deadline."""
    HARD = "hard"
    """Its limit is over by the journal's clock. It lapses once one process has seen it unrenewed so long."""
    RECOVERING = "recovering"
    FREE = "free"


Purpose = Literal["write", "recover", "take over"]

TAKES: Final[Mapping[Purpose, frozenset[LeaseState]]] = {
    "write": frozenset({LeaseState.FREE}),
    "recover": frozenset({LeaseState.FREE, LeaseState.HARD}),
    "take over": frozenset(LeaseState),
}
"""States from which a lease can be taken, by purpose. A job's next driver takes over from any and fences."""


def state_of(lease: Lease, now_s: float) -> LeaseState:
    """Return the state of a lease at a time, in seconds since the epoch by the database's clock."""
    age_s = now_s - lease.renewed_s
    match lease.standing:
        case Standing.FREE:
            return LeaseState.FREE
        case Standing.SUSPENDED:
            return LeaseState.SUSPENDED if now_s < (lease.suspended_until_s or 0.0) else LeaseState.HARD
        case Standing.RECOVERING:
            return LeaseState.RECOVERING if age_s < lease.hard_s else LeaseState.HARD
        case Standing.HELD:
            if age_s < lease.soft_s:
                return LeaseState.HELD
            return LeaseState.SOFT if age_s < lease.hard_s else LeaseState.HARD


def is_overdue(lease: Lease, now_s: float) -> bool:
    """Return whether a lease may have lapsed, by a wall clock that may have jumped in either direction.

    A renewal that lies more than the limit in the future shows that the clock was set back.
    """
    match lease.standing:
        case Standing.FREE | Standing.SUSPENDED:
            return state_of(lease, now_s) in TAKES["recover"]
        case _:
            return not -lease.hard_s <= now_s - lease.renewed_s < lease.hard_s


class Seen(msgspec.Struct, frozen=True):
    """A lease as a process has seen it, unrenewed for the lease's limit on a monotonic clock.

    Attributes:
        stamp: Stamp with which it was taken.
        renewed_s: Time of its last renewal, by the journal's clock.
    """

    stamp: Stamp
    renewed_s: float

    @classmethod
    def of(cls, lease: Lease) -> Seen:
        """Return what a process sees when it reads this row."""
        return cls(lease.stamp, lease.renewed_s)


def state_for(seen: Seen | None, lease: Lease, at_s: float) -> LeaseState:
    """Return a lease's state for an entry that ends it; its time does not count if it was seen to lapse.

    Renewals only increase `renewed_s`, so a replay, which does not know them, accepts what was accepted.
    """
    if seen is None or lease.standing in {Standing.FREE, Standing.SUSPENDED}:
        return state_of(lease, at_s)
    is_same = lease.stamp == seen.stamp and lease.renewed_s <= seen.renewed_s
    return LeaseState.HARD if is_same else LeaseState(lease.standing)


class Granted(msgspec.Struct, frozen=True):
    """A lease that was taken.

    Attributes:
        stamp: New stamp of the holder, greater than all before.
        before: State of the lease before.
    """

    stamp: Stamp
    before: LeaseState


class _LeaseOp(Op, frozen=True):
    """A mutation of one resource's lease."""

    resource: str

    def touches(self) -> Iterable[Key]:
        return [(Lease, (self.resource,))]


class TakeLease(_LeaseOp, frozen=True, tag="take-lease"):
    """Take a resource's lease, with a new stamp.

    Attributes:
        holder: Name of the new holder, which renews it.
        purpose: Determines the states from which it can be taken: see `TAKES`.
        soft_s: Without a renewal for this long, it is late.
        hard_s: Without a renewal for this long, recovery may start; at least `soft_s`.
        detail: Description of the holder.
        seen: The lapsed lease that is recovered. It is refused if it was renewed or taken since.
    """

    RESULT: ClassVar = Granted

    holder: str
    purpose: Purpose
    soft_s: float
    hard_s: float
    detail: str = ""
    seen: Seen | None = None

    def fold(self, state: State, moment: Moment) -> Granted:
        """Take the lease if its state allows the purpose."""
        lease = state.get(Lease, self.resource)
        before = LeaseState.FREE if lease is None else state_for(self.seen, lease, moment.at_s)
        if self.purpose == "recover" and moment.is_safe_mode:
            raise SafeModeError(f"{self.resource}: the journal is in safe mode: no lease is recovered in it")
        if lease is not None and before not in TAKES[self.purpose]:
            raise LeaseHeldError(
                f"{self.resource}: its lease is {before} by {lease.holder} since stamp {lease.stamp}; "
                "nothing was changed; wait for it to lapse, or take it over"
            )
        standing = Standing.RECOVERING if self.purpose == "recover" else Standing.HELD
        state.put(
            Lease(
                resource=self.resource,
                holder=self.holder,
                epoch=moment.stamp.epoch,
                sequence=moment.stamp.sequence,
                standing=standing,
                renewed_s=moment.at_s,
                soft_s=self.soft_s,
                hard_s=self.hard_s,
                detail=self.detail,
            )
        )
        return Granted(moment.stamp, before)


class FencedOp(_LeaseOp, frozen=True):
    """A mutation that only the holder of a resource's lease may write: the base for every family.

    The fold refuses it, before anything else, if the lease was taken with a newer stamp or freed. A lapsed
    lease still holds until another holder takes it.

    Attributes:
        stamp: Stamp with which the lease was taken.
    """

    stamp: Stamp

    @final
    def fold(self, state: State, moment: Moment) -> Any:
        """Check the lease, then apply the mutation.

        Raises:
            FencedError: The lease is lost.
        """
        return self.fold_held(state, moment, held(state, self.resource, self.stamp))

    @abstractmethod
    def fold_held(self, state: State, moment: Moment, lease: Lease) -> Any:
        """Apply the mutation of a holder to the state and return its result.

        Raises:
            LockgateError: The state does not allow it.
        """


class SuspendLease(FencedOp, frozen=True, tag="suspend-lease"):
    """Keep a resource's lease without renewals, until its next step.

    Attributes:
        for_s: How long it does not lapse.
    """

    for_s: float

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> None:
        """Suspend the lease."""
        until_s = moment.at_s + self.for_s
        state.put(msgspec.structs.replace(lease, standing=Standing.SUSPENDED, suspended_until_s=until_s))


class FreeLease(FencedOp, frozen=True, tag="free-lease"):
    """Free a resource's lease."""

    def fold_held(self, state: State, moment: Moment, lease: Lease) -> None:  # noqa: ARG002 - of the base
        """Free the lease."""
        state.put(msgspec.structs.replace(lease, standing=Standing.FREE, suspended_until_s=None))


class DropLease(_LeaseOp, frozen=True, tag="drop-lease"):
    """Delete a free lease, such as that of an ended job."""

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Delete the row if the lease is free."""
        lease = state.get(Lease, self.resource)
        if lease is not None and lease.standing is Standing.FREE:
            state.delete(lease)


class RearmLeases(Op, frozen=True, tag="rearm-leases"):
    """Renew leases, because no holder could renew while the journal was down.

    Attributes:
        resources: Resources of the leases.
    """

    RESULT: ClassVar = int

    resources: tuple[str, ...]

    def touches(self) -> Iterable[Key]:
        return [(Lease, (resource,)) for resource in self.resources]

    def fold(self, state: State, moment: Moment) -> int:
        """Renew each lease now, extend suspended ones by their hard limit, and return their number."""
        named = (state.get(Lease, resource) for resource in self.resources)
        leases = [lease for lease in named if lease is not None and lease.standing is not Standing.FREE]
        for lease in leases:
            until_s = lease.suspended_until_s
            if until_s is not None:
                until_s = max(until_s, moment.at_s + lease.hard_s)
            state.put(msgspec.structs.replace(lease, renewed_s=moment.at_s, suspended_until_s=until_s))
        return len(leases)


def held(state: State, resource: str, stamp: Stamp) -> Lease:
    """Return the lease if a caller's stamp still holds it: the comparison of each compare-and-swap.

    Raises:
        FencedError: It was taken with a newer stamp, or freed.
    """
    return check_held(resource, stamp, state.get(Lease, resource))


def check_held(resource: str, stamp: Stamp, lease: Lease | None) -> Lease:
    """Return a lease if a caller's stamp still holds it.

    Raises:
        FencedError: It was taken with a newer stamp, or freed, or does not exist.
    """
    if lease is None or lease.stamp != stamp or lease.standing is Standing.FREE:
        raise FencedError(fenced(resource, stamp, lease))
    return lease


def fenced(resource: str, stamp: Stamp, lease: Lease | None) -> str:
    """Return the message for a holder whose lease was lost."""
    why = _why_lost(stamp, lease)
    return f"{resource}: the lease taken with stamp {stamp} is lost: {why}; stop, and change nothing more"


def _why_lost(stamp: Stamp, lease: Lease | None) -> str:
    if lease is None:
        return "it does not exist any more"
    if lease.stamp != stamp:
        return f"it is {lease.standing} by {lease.holder} since stamp {lease.stamp}"
    match lease.standing:
        case Standing.FREE:
            return "it was given back"
        case Standing.SUSPENDED:
            return "it was suspended"
        case _:
            return f"it is {lease.standing} by {lease.holder}, another holder"
