"""Open uploads and blobs."""

from __future__ import annotations

from typing import Literal

from lockgate.plugins.web.models.model import Model, Page

BlobState = Literal["uploading", "referenced", "unreferenced", "deleting"]


class UploadRow(Model):
    """An open upload.

    Attributes:
        owner: Id of its job; None without a known owner.
        begun_s: By the store's clock.
        action: What a sweep would do: `abort`, `keep`, or `stage` (a later sweep aborts it).
        why: Reason for the action.
        remedy: What a person can do about an upload that is kept; empty if nothing.
    """

    key: str
    upload_id: str
    owner: str | None
    begun_s: float
    size_bytes: int | None
    action: str
    why: str
    remedy: str


class UploadTotals(Model):
    """All open uploads of a destination for which a sweep would do the same.

    Attributes:
        unmeasured: Uploads of unknown size, which the other figures do not include.
        monthly_usd: Approximate cost of a month; None for a store without a price.
    """

    action: str
    uploads: int
    unmeasured: int
    size_bytes: int
    monthly_usd: float | None


class UploadOwner(Model):
    """The open uploads of one job, or those without an owner.

    Attributes:
        owner: Id of the job; None: uploads without a known owner.
        unmeasured: Uploads of unknown size, which `size_bytes` and `monthly_usd` do not include.
        monthly_usd: Approximate cost of a month; None for a store without a price.
        oldest_s: When the first of them was begun, by the store's clock.
        newest_s: When the last of them was begun.
        actions: Number of uploads by what a sweep would do: `abort`, `keep` or `stage`.
    """

    owner: str | None
    uploads: int
    unmeasured: int
    size_bytes: int
    monthly_usd: float | None
    oldest_s: float
    newest_s: float
    actions: dict[str, int]


class UploadOwners(Page[UploadOwner]):
    """A page of the owners of open uploads, and the totals of all uploads by what a sweep would do."""

    totals: tuple[UploadTotals, ...] = ()


class BlobJobRow(Model):
    """The blobs of one job.

    Attributes:
        blob_job: Id of the job in the blob stores; `no_job` for blobs without one.
        since_s: When the oldest blob was put.
        destination: Destination of the job whose artefacts they are; None if there is none.
        job_id: Id of that job.
        ended_s: When it ended and its blobs became deletable; None before.
        until: When the blobs go, in one sentence.
    """

    blob_job: str
    blobs: int
    size_bytes: int
    since_s: float
    destination: str | None
    job_id: str | None
    ended_s: float | None
    until: str


class BlobRow(Model):
    """A blob.

    Attributes:
        name: Name of the original file; may be empty.
        goes_s: Time from which a sweep deletes it; None while something keeps it.
        owners: Up to 20 owners of references that keep it.
    """

    blob_key: str
    name: str
    use: Literal["library", "message", "log", "other"]
    is_in_ha_store: bool
    size_bytes: int
    put_s: float
    state: BlobState
    goes_s: float | None
    owners: tuple[str, ...]
