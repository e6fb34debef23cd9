"""What the registry knows of blobs: blobs, what keeps them, open uploads, the jobs they belong to."""

from __future__ import annotations

from typing import ClassVar, Literal

from lockgate.storage_core.journal.entries.rows import Row

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
    INDEXES: ClassVar = (("staged_s",), ("deleting_s",), ("upload_set",))

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

    TABLE: ClassVar = "blob_reference"
    KEY: ClassVar = ("job_id", "blob_key", "owner")
    INDEXES: ClassVar = (("owner",), ("until_s",))

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
    INDEXES: ClassVar = (("destination", "commit_job"),)

    job_id: str
    destination: str
    commit_job: str
    submitted_s: float
    final_s: float | None = None
