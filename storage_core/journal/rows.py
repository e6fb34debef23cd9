"""The rows that entries fold into: what the journal knows now. `schema.py` has their tables."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal

import msgspec

from storage_core.stamp import Stamp


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one table, without the column `journal`. A field a column, of the same name.

    Attributes:
        TABLE: Its name in the schema.
        KEY: The columns that tell it from others.
    """

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]

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


class Destination(Row, frozen=True):
    """A place that jobs write."""

    TABLE: ClassVar = "destination"
    KEY: ClassVar = ("url",)

    url: str
    first_s: float
    last_s: float


Phase = Literal["open", "committing", "aborting", "committed", "failed"]


class Job(Row, frozen=True):
    """A job as the registry knows it: an index over what the store says, which alone decides.

    Attributes:
        set_up_s: When its `job.json` was created.
        changed_s: When the registry last heard of it.
        ended_s: When its terminal marker was written, None before.
        job_attempt: The newest run of its driver.
    """

    TABLE: ClassVar = "job"
    KEY: ClassVar = ("destination", "job_id")

    destination: str
    job_id: str
    name: str
    short_id: str
    committer: str
    mode: str
    phase: Phase
    job_attempt: str
    set_up_s: float
    changed_s: float
    ended_s: float | None = None


class TaskAttempt(Row, frozen=True):
    """A task commit as the registry knows it.

    Attributes:
        rows: Where the writer counted them.
    """

    TABLE: ClassVar = "attempt"
    KEY: ClassVar = ("destination", "job_id", "task_id", "attempt_id")

    destination: str
    job_id: str
    task_id: str
    attempt_id: str
    job_attempt: str
    files: int
    rows: int | None
    size_bytes: int
    committed_s: float


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


ROWS: tuple[type[Row], ...] = (Lease, Destination, Job, TaskAttempt, Claim)
"""Every table that entries fold into."""
