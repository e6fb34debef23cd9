"""The `Blobs` protocol of a blob server, in this process or over HTTP, and its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypedDict, Unpack

import msgspec

from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey, UploadSetId, check_blob_job, check_blob_key
from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobUse, Guarantee, Reference
from lockgate.storage_core.blobs.registry.queries import JobBlobs
from lockgate.storage_core.blobs.reports import BlobSweepReport, VerifiedPage
from lockgate.storage_core.blobs.sources import Source
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import InvalidInputError

Lapse = Annotated[float, msgspec.Meta(ge=0)]
"""Seconds from now; not negative, because a lapsed reference would keep nothing."""


class BlobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that was put.

    Attributes:
        size_bytes: Size of the bytes, which hash to the key.
    """

    job_id: str
    blob_key: BlobKey
    size_bytes: int


class ArtefactFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a job's tasks need.

    Attributes:
        name: Name of the original file, which an import path needs.
    """

    blob_key: BlobKey
    name: str
    use: BlobUse = "library"


class Artefacts(msgspec.Struct, frozen=True, kw_only=True):
    """Files uploaded for a job before it exists; submitting the job makes them its blobs.

    Attributes:
        job_id: Id of the job in the blob stores.
        blobs: Blobs, in the order in which they were given.
    """

    job_id: str
    blobs: tuple[ArtefactFile, ...]

    @property
    def blob_keys(self) -> list[BlobKey]:
        """Keys of all blobs."""
        return [blob.blob_key for blob in self.blobs]

    def handle(self) -> dict[str, Any]:
        """Return a small JSON value that describes them to another Airflow task, as lists of equal length."""
        return {
            "job_id": self.job_id,
            "blob_keys": [str(key) for key in self.blob_keys],
            "names": [blob.name for blob in self.blobs],
            "uses": [blob.use for blob in self.blobs],
        }

    @classmethod
    def of_handle(cls, handle: object) -> Self:
        """Return the artefacts of a handle; without `uses`, all are libraries.

        Raises:
            InvalidInputError: It is not a handle.
        """
        try:
            decoded = convert(handle, _Handle)
            uses = decoded.uses or ["library"] * len(decoded.names)
            files = zip(decoded.blob_keys, decoded.names, uses, strict=True)
            return cls(
                job_id=check_blob_job(decoded.job_id),
                blobs=tuple(
                    ArtefactFile(blob_key=check_blob_key(blob_key), name=name, use=use)
                    for blob_key, name, use in files
                ),
            )
        except (msgspec.ValidationError, ValueError) as error:
            raise InvalidInputError(
                f"artefacts={str(handle)[:120]!r} are none ({error}): pass the output of BlobUploadOperator"
            ) from None


class _Handle(msgspec.Struct, frozen=True):
    """A handle of artefacts, as JSON."""

    job_id: str
    blob_keys: list[str]
    names: list[str]
    uses: list[BlobUse] = msgspec.field(default_factory=list)


class PutOptions(TypedDict, total=False):
    """Options of `Blobs.put`.

    Attributes:
        guarantee: Whether a recovery needs the bytes.
        use: Purpose of the blob.
        name: Name of the original file.
        upload_set: Set that keeps the blob until it is complete.
        owners: Owners that refer to the blob at once; without an owner and without a set, it is staged.
        lapse_s: Time after which the references lapse, for owners that may never start.
        digest: Expected SHA-256 of the bytes, in hexadecimal.
        request_id: Id of the put, the same in every retry: they make one blob.
    """

    guarantee: Guarantee
    use: BlobUse
    name: str
    upload_set: UploadSetId | None
    owners: Sequence[str]
    lapse_s: float | None
    digest: str | None
    request_id: str | None


class NewBlob(msgspec.Struct, frozen=True, kw_only=True):
    """`PutOptions` with their defaults."""

    guarantee: Guarantee = "ha"
    use: BlobUse = "other"
    name: str = ""
    upload_set: UploadSetId | None = None
    owners: Sequence[str] = ()
    lapse_s: float | None = None
    digest: str | None = None
    request_id: str | None = None


class Blobs(Protocol):
    """A blob server. Safe to use from several threads.

    Every method raises only errors of `lockgate.storage_core.errors`.
    """

    def begin_set(self, job_id: str) -> UploadSetId:
        """Open an upload set for blobs of a job that may not exist yet; a lease keeps it open.

        Raises:
            FencedError: The job has ended.
        """

    def put(self, source: Source, *, job_id: str = NO_JOB, **options: Unpack[PutOptions]) -> BlobInfo:
        """Put bytes. They are durable when this returns: in the local store, and in the HA store if `ha`.

        Raises:
            CorruptBlobError: The bytes received have another digest; nothing was kept.
            ConflictError: An earlier put with this request id had other bytes; nothing was kept.
            FencedError: The set is complete or abandoned, or the job has ended; nothing was kept.
            StoreUnavailableError: A store is full or unreachable; nothing was kept.
            OutcomeUnknownError: The blob may have been put; the sweep deletes it if it has no reference.
        """

    def complete_set(self, upload_set: UploadSetId, *, request_id: str | None = None) -> int:
        """Stage all blobs of a set; submit the job within the retention interval.

        Returns:
            Number of blobs that this call staged. After a lost answer, pages of a large set that the first
            try staged do not count.

        Raises:
            FencedError: It is complete already, or abandoned.
        """

    def submit(
        self, job_id: str, blob_keys: Sequence[BlobKey], *, destination: str = "", commit_job: str = ""
    ) -> None:
        """Keep blobs for a job until it ends; all of them, or none.

        More than 1,000 blobs are kept page by page, so that other writers need not wait for all. If one is
        deleted meanwhile, or the process dies, the pages before it stay kept until the job ends; the error
        says how many blobs these are.

        Args:
            job_id: Job that they were uploaded for.
            blob_keys: All blobs that it needs.
            destination: Destination of the commit job; empty if there is none.
            commit_job: Id of the commit job at the destination.

        Raises:
            ObjectNotFoundError: A blob is gone; upload them again.
            FencedError: The job has ended.
        """

    def refer(self, job_id: str, blob_key: BlobKey, owner: str, *, lapse_s: float | None = None) -> None:
        """Add an owner's reference to a blob.

        Raises:
            ObjectNotFoundError: The blob is gone, or being deleted.
            FencedError: Its job has ended.
        """

    def drop(self, job_id: str, blob_key: BlobKey, owner: str) -> None:
        """Drop an owner's reference, if there is one."""

    def drop_owner(self, owner: str) -> int:
        """Drop all references of an owner; return their number."""

    def fail(self, job_id: str) -> None:
        """Release the recreatable blobs of a job that failed and may be recovered."""

    def finish(self, job_id: str) -> None:
        """End a job and delete all its blobs, whatever references they have.

        Raises:
            SafeModeError: The journal is in safe mode; nothing was changed.
            StoreUnavailableError: Some bytes could not be deleted; the sweep deletes them.
        """

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a verified blob to a local store; return its path there.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
        """

    def get(self, job_id: str, blob_key: BlobKey) -> bytes:
        """Return the verified bytes of a blob that fits in memory.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
        """

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return the rows of at most a thousand blobs, by job and key; empty after the last page.

        Args:
            job_id: Job of the blobs; None: all jobs.
            after: Job and key of the last blob of the previous page.
        """

    def jobs(self, job_id: str | None = None, *, after: str = "") -> Sequence[JobBlobs]:
        """Return at most a thousand jobs with blobs or a submission, by name; empty after the last page."""

    def references(
        self, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
    ) -> Sequence[Reference]:
        """Return references to blobs, by job, blob or owner."""

    def sweep(
        self, *, dry_run: bool, orphans: bool | None = None, progress: Progress = no_progress
    ) -> BlobSweepReport:
        """Delete blobs that nothing keeps.

        Args:
            dry_run: Change nothing, and report what would be deleted.
            orphans: Whether to list the stores for bytes without a row; None: if a listing is due.
            progress: Called with the progress.

        Raises:
            SafeModeError: The journal is in safe mode; nothing was deleted.
        """

    def verify(
        self,
        job_id: str | None = None,
        *,
        after: tuple[str, str] = ("", ""),
        deep: bool = False,
        heal: bool = False,
    ) -> VerifiedPage:
        """Verify that a page of blobs has the recorded bytes.

        Args:
            job_id: Job of the blobs; None: all jobs.
            after: Job and key of the last blob of the previous page.
            deep: Read and hash all bytes, instead of comparing sizes only.
            heal: Replace a bad copy by the good one.
        """
