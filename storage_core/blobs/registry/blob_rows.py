"""The rows of the registry of blobs: blobs, references, open upload sets, jobs."""

from __future__ import annotations

from typing import ClassVar, Literal

from lockgate.storage_core.journal.entries.state import Row

Guarantee = Literal["ha", "recreatable"]
"""`ha`: kept for recovery, in the local store and the HA store. `recreatable`: its user can create it again,
so it is only in the local store and need not outlive a failed job."""

BlobUse = Literal["library", "message", "log", "other"]


class Blob(Row, frozen=True):
    """An immutable artefact, `<path>/<job id>/<blob key>` in the local store and, if `ha`, in the HA store.

    Attributes:
        job_id: Id of its job, or `no_job`.
        blob_key: Digest of its bytes and a random part: see `blobs.keys`.
        use: Purpose of the blob.
        name: Name of the original file, for people and for import paths.
        upload_set: Upload set that contains it, empty after the set is complete.
        put_s: When it was recorded.
        staged_s: Since when it is unreferenced; None while it has a reference or is in an upload set.
        deleting_s: Since when its bytes may be deleted and references are refused; None before.
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
    """A reason to keep a blob, held by an owner.

    Attributes:
        owner: `job`, `attempt:<id>`, `receiver:<id>`, `viewer:<id>`, `xcom:<row>`, …
        taken_s: When it was taken.
        until_s: When it lapses if its owner never uses it; None: it does not lapse.
    """

    TABLE: ClassVar = "blob_reference"
    KEY: ClassVar = ("job_id", "blob_key", "owner")
    INDEXES: ClassVar = (("owner", "job_id", "blob_key"), ("until_s",))

    job_id: str
    blob_key: str
    owner: str
    taken_s: float
    until_s: float | None = None


class UploadSet(Row, frozen=True):
    """An open upload set: while this row exists, its blobs must not be cleaned up.

    A complete or abandoned set has no row. Each blob key contains its set, so a sweep that finds bytes
    without a row can tell whether the uploader may still record them.

    Attributes:
        job_id: Id of the blobs' job; empty: a server's set, for single blobs of any job.
    """

    TABLE: ClassVar = "upload_set"
    KEY: ClassVar = ("upload_set",)

    upload_set: str
    job_id: str
    began_s: float


class BlobJob(Row, frozen=True):
    """A job that was submitted with blobs.

    Attributes:
        job_id: Name in the blob stores, given before the first upload.
        destination: Destination of its commit job, empty if it has none.
        commit_job: Id of the commit job.
        submitted_s: When it was submitted.
        final_s: When it ended, after which references are refused and all its blobs are deletable; None
            before.
    """

    TABLE: ClassVar = "blob_job"
    KEY: ClassVar = ("job_id",)
    INDEXES: ClassVar = (("destination", "commit_job"),)

    job_id: str
    destination: str
    commit_job: str
    submitted_s: float
    final_s: float | None = None
