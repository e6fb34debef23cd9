"""The rows that entries fold into: their base class, and the journal's own. Tables are derived from them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final

import msgspec

from lockgate.storage_core.stamp import Stamp


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of a table, without the column `journal`. Each field is a column of the same name.

    Attributes:
        TABLE: Name of the table.
        KEY: Columns of the primary key.
        INDEXES: Columns of each other index.
        SOFT: Columns that no entry sets, so that entries alone do not give them.
    """

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    INDEXES: ClassVar[tuple[tuple[str, ...], ...]] = ()
    SOFT: ClassVar[tuple[str, ...]] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `KEY`."""
        return tuple([getattr(self, column) for column in self.KEY])


class Standing(StrEnum):
    """State stored in a lease's row; the effective state also depends on the time (`leases.LeaseState`)."""

    HELD = "held"
    PARKED = "parked"
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
        parked_until_s: Deadline of a parked lease.
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
    parked_until_s: float | None = None
    detail: str = ""
    dropped_s: float | None = None

    @property
    def stamp(self) -> Stamp:
        """Stamp with which it was taken."""
        return Stamp(self.epoch, self.sequence)


class Claim(Row, frozen=True):
    """A claimed name of a store that has no conditional create.

    Attributes:
        store: URL of the store.
        body: Content of the object, in base 64.
    """

    TABLE: ClassVar = "claim"
    KEY: ClassVar = ("store", "name")

    store: str
    name: str
    body: str
    claimed_s: float


class Request(Row, frozen=True):
    """A request whose entry was pruned, and its result."""

    TABLE: ClassVar = "request"
    KEY: ClassVar = ("request_id",)

    request_id: str
    epoch: int
    sequence: int
    op: str
    result: str
    at_s: float
