"""The rows that entries fold into: what the journal knows now. `schema.py` has their tables."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal

import msgspec

from lockgate.storage_core.stamp import Stamp


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


Guarantee = Literal["ha", "recreatable"]
"""`ha`: kept for recovery, in the local store and the HA store. `recreatable`: whoever needs it can make it
again, so the local store is enough, and a failed job's are let go."""

BlobUse = Literal["library", "message", "log", "other"]


class Blob(Row, frozen=True):
    """An immutable artefact, `<path>/<job id>/<blob key>` in the local store and, if `ha`, in the HA store.

    Attributes:
        job_id: Of the job that it belongs to, `no_job` for none.
        blob_key: Digest of its bytes and a random part: see `blobs.keys`.
        use: What it is kept for.
        name: Of the file that it was, for people and for import paths.
        upload_set: The set that it is part of until that is complete, then empty.
        put_s: When it was recorded.
        staged_s: Since when nothing refers to it; None while something does, and within an upload set.
        deleting_s: Since when its bytes may be gone, after which references to it are refused; None before.
    """

    TABLE: ClassVar = "blob"
    KEY: ClassVar = ("job_id", "blob_key")

    job_id: str
    blob_key: str
    guarantee: Guarantee
    use: BlobUse
    name: str
    size_bytes: int
    upload_set: str
    put_s: float
    staged_s: float | None = None
    deleting_s: float | None = None


class Reference(Row, frozen=True):
    """A reason to keep a blob. Counts are counted, never stored.

    Attributes:
        owner: `job`, `attempt:<id>`, `receiver:<id>`, `viewer:<id>`, `xcom:<row>`, …
        taken_s: When it was taken.
        until_s: It lapses then, for its owner may never come; None: it does not.
    """

    TABLE: ClassVar = "reference"
    KEY: ClassVar = ("job_id", "blob_key", "owner")

    job_id: str
    blob_key: str
    owner: str
    taken_s: float
    until_s: float | None = None


class UploadSet(Row, frozen=True):
    """Uploads under way: while this row stands, its blobs are nobody's to clean up.

    A set that is complete, or was given up, has no row. Every blob key names its set, so whoever finds bytes
    without a row can tell whether somebody may still record them.

    Attributes:
        job_id: Of the job that the blobs are for; empty: a server's own, for single blobs of any job.
    """

    TABLE: ClassVar = "upload_set"
    KEY: ClassVar = ("upload_set",)

    upload_set: str
    job_id: str
    began_s: float


class BlobJob(Row, frozen=True):
    """A job that blobs were submitted with.

    Attributes:
        job_id: Its name in the blob stores, given before the first upload.
        destination: Of the commit job that it is, empty if it is none.
        commit_job: That job's id at the destination.
        submitted_s: When its blobs became its own.
        final_s: When it ended, after which no reference is taken and all its blobs go; None before.
    """

    TABLE: ClassVar = "blob_job"
    KEY: ClassVar = ("job_id",)

    job_id: str
    destination: str
    commit_job: str
    submitted_s: float
    final_s: float | None = None


ROWS: tuple[type[Row], ...] = (
    Lease,
    Destination,
    Job,
    TaskAttempt,
    Claim,
    Blob,
    Reference,
    UploadSet,
    BlobJob,
)
"""Every table that entries fold into."""
