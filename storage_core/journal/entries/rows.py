"""Rows that entries fold into: what a row is, and the journal's own. Their tables are derived from them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from lockgate.storage_core.stamp import Stamp


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one table, without the column `journal`. A field a column, of the same name.

    Attributes:
        TABLE: Name of the table.
        KEY: The columns that tell it from others.
        INDEXES: The columns of each other index of the table.
    """

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    INDEXES: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `KEY`."""
        return tuple(getattr(self, column) for column in self.KEY)


class Standing(StrEnum):
    """What stands in a lease's row; how it is seen depends on the time, too (`leases.LeaseState`)."""

    HELD = "held"
    PARKED = "parked"
    RECOVERING = "recovering"
    FREE = "free"


class Lease(Row, frozen=True):
    """The right of one holder to write one resource.

    Attributes:
        resource: `job:<destination>#<job id>`, `file:<path>`, …
        holder: Who renews it.
        epoch: Of the stamp with which it was taken.
        sequence: Of the same stamp.
        renewed_s: The only column that no entry sets: see `leases.renew`.
        soft_s: A renewal this old is overdue: another writer may pre-empt.
        hard_s: A renewal this old has lapsed: recovery may start.
        parked_until_s: Of a parked one: it has not lapsed until then.
        detail: What the holder says of itself, such as its job attempt.
    """

    TABLE: ClassVar = "lease"
    KEY: ClassVar = ("resource",)
    INDEXES: ClassVar = (("holder",), ("standing",))

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

    @property
    def stamp(self) -> Stamp:
        """With which it was taken."""
        return Stamp(self.epoch, self.sequence)


class Claim(Row, frozen=True):
    """A created-if-absent name at a store that cannot create so itself: the journal is its arbiter.

    Attributes:
        store: URL of the place.
        body: What stands there, in base 64.
    """

    TABLE: ClassVar = "claim"
    KEY: ClassVar = ("store", "name")

    store: str
    name: str
    body: str
    claimed_s: float


class Request(Row, frozen=True):
    """The id of a request whose entry was pruned, and what came of it."""

    TABLE: ClassVar = "request"
    KEY: ClassVar = ("request_id",)

    request_id: str
    epoch: int
    sequence: int
    op: str
    result: str
    at_s: float
