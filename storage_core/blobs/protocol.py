"""What can be asked of a blob server, whether it is this process or another one over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypedDict, Unpack

import msgspec

from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey, UploadSetId, check_blob_job, check_blob_key
from lockgate.storage_core.blobs.registry.queries import JobBlobs
from lockgate.storage_core.blobs.registry.rows import Blob, BlobUse, Guarantee, Reference
from lockgate.storage_core.blobs.reports import BlobSweepReport, VerifiedPage
from lockgate.storage_core.blobs.sources import Source
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError

Lapse = Annotated[float, msgspec.Meta(ge=0)]
"""Seconds from now: a reference that had lapsed before would keep nothing, and say nothing."""


class BlobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that was put.

    Attributes:
        size_bytes: Of its bytes, which hash to the key.
    """

    job_id: str
    blob_key: BlobKey
    size_bytes: int


class ArtefactFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a job's tasks need.

    Attributes:
        name: Of the file that it was: an import path wants it back.
    """

    blob_key: BlobKey
    name: str
    use: BlobUse = "library"


class Artefacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was uploaded for a job: put before the job exists, made its own as it is submitted.

    Attributes:
        job_id: Of the job in the blob stores.
        blobs: In the order in which they were given.
    """

    job_id: str
    blobs: tuple[ArtefactFile, ...]

    @property
    def blob_keys(self) -> list[BlobKey]:
        """Keys of all its blobs."""
        return [blob.blob_key for blob in self.blobs]

    def handle(self) -> dict[str, Any]:
        """Return what tells another Airflow task of them: small, JSON, and of lists of equal length."""
        return {
            "job_id": self.job_id,
            "blob_keys": [str(key) for key in self.blob_keys],
            "names": [blob.name for blob in self.blobs],
            "uses": [blob.use for blob in self.blobs],
        }

    @classmethod
    def of_handle(cls, handle: object) -> Self:
        """Return what `handle` told; `uses` may be missing, then all are libraries.

        Raises:
            InvalidInputError: It is something else.
        """
        try:
            told = msgspec.convert(handle, _Handle)
            uses = told.uses or ["library"] * len(told.names)
            files = zip(told.blob_keys, told.names, uses, strict=True)
            return cls(
                job_id=check_blob_job(told.job_id),
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
    """The form of a handle of artefacts."""

    job_id: str
    blob_keys: list[str]
    names: list[str]
    uses: list[BlobUse] = msgspec.field(default_factory=list)


class PutOptions(TypedDict, total=False):
    """Options of `Blobs.put`.

    Attributes:
        guarantee: Whether a recovery needs the bytes.
        use: What they are for.
        name: Name of the file that they were.
        upload_set: Keeps the blob until the set is complete.
        owners: Owners that refer to the blob at once; without any, and without a set, it is staged.
        lapse_s: The references lapse after this time, for their owners may never come.
        digest: SHA-256 that the bytes must have, in hexadecimal.
        request_id: The same over all tries of one put: they make one blob.
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

    Every method raises the errors of `lockgate.storage_core.errors` only.
    """

    def begin_set(self, job_id: str) -> UploadSetId:
        """Open an upload set, for blobs of a job that may not exist yet; a lease keeps it.

        Raises:
            FencedError: The job has ended.
        """

    def put(self, source: Source, *, job_id: str = NO_JOB, **options: Unpack[PutOptions]) -> BlobInfo:
        """Put bytes; durable when this returns: in the local store, and in the HA store if `ha`.

        Args:
            source: The bytes.
            job_id: Job that they belong to.
            options: See `PutOptions`.

        Raises:
            CorruptBlobError: The bytes that came have another digest; nothing was kept.
            ConflictError: An earlier put with this request id had other bytes; nothing was kept.
            FencedError: The set is complete or was given up, or the job has ended; nothing was kept.
            StoreUnavailableError: A store is full or away; nothing was kept.
            OutcomeUnknownError: The blob may have been put; what nobody refers to is swept.
        """

    def complete_set(self, upload_set: UploadSetId, *, request_id: str | None = None) -> int:
        """Stage all blobs of a set: the job is to be submitted within the retention interval.

        Args:
            upload_set: As `begin_set` returned it.
            request_id: The same over all tries.

        Returns:
            How many blobs it has.

        Raises:
            FencedError: It is complete, or was given up.
        """

    def submit(
        self, job_id: str, blob_keys: Sequence[BlobKey], *, destination: str = "", commit_job: str = ""
    ) -> None:
        """Make blobs a job's own until it ends; all of them, or none.

        Args:
            job_id: For which they were uploaded.
            blob_keys: All that it needs.
            destination: Of the commit job that it is, empty if it is none.
            commit_job: That job's id there.

        Raises:
            ObjectNotFoundError: One is gone; upload them again.
            FencedError: The job has ended.
        """

    def refer(self, job_id: str, blob_key: BlobKey, owner: str, *, lapse_s: float | None = None) -> None:
        """Keep a blob for an owner.

        Raises:
            ObjectNotFoundError: It is gone, or about to be.
            FencedError: Its job has ended.
        """

    def drop(self, job_id: str, blob_key: BlobKey, owner: str) -> None:
        """End an owner's reference; one that is not there is dropped already."""

    def drop_owner(self, owner: str) -> int:
        """End all references of an owner; returns how many there were."""

    def fail(self, job_id: str) -> None:
        """Let go what can be made again of a job that failed and may be recovered."""

    def finish(self, job_id: str) -> None:
        """End a job: all its blobs go at once, whatever refers to them.

        Raises:
            SafeModeError: The journal is in safe mode; nothing was changed.
            StoreUnavailableError: Some bytes could not be deleted; the sweep does it.
        """

    def fetch(self, local: LocalBlobs, job_id: str, blob_key: BlobKey) -> Path:
        """Copy a blob to a local store, verified; returns its path there.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
        """

    def get(self, job_id: str, blob_key: BlobKey) -> bytes:
        """Return a blob's bytes, verified; for blobs that fit in memory.

        Raises:
            ObjectNotFoundError: There is no such blob.
            CorruptBlobError: Every copy of it is damaged.
        """

    def page(self, job_id: str | None = None, *, after: tuple[str, str] = ("", "")) -> Sequence[Blob]:
        """Return what is known of at most a thousand blobs, by job and key; none: there are no more.

        Args:
            job_id: Of the job; None: of all.
            after: Job and key of the last one of the page before.
        """

    def jobs(self, job_id: str | None = None, *, after: str = "") -> Sequence[JobBlobs]:
        """Return at most a thousand jobs that have blobs or were submitted, by name; none: there are no more.

        Args:
            job_id: Only this one.
            after: Name of the last one of the page before.
        """

    def references(
        self, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
    ) -> Sequence[Reference]:
        """Return what keeps blobs, by job, blob or owner."""

    def sweep(
        self, *, dry_run: bool, orphans: bool | None = None, progress: Progress = no_progress
    ) -> BlobSweepReport:
        """Delete what nothing keeps.

        Args:
            dry_run: Change nothing, say what would go.
            orphans: List the stores, too, for bytes that no row knows; None: where that is due.
            progress: Hears how far it is.

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
        """Look whether a page of blobs has the bytes that it should have.

        Args:
            job_id: Of the job; None: of all.
            after: Job and key of the last one of the page before.
            deep: Read all bytes and hash them; else only sizes are looked at.
            heal: Replace a bad copy by the good one.
        """
