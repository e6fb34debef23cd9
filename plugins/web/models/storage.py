"""Open uploads and blobs."""

from __future__ import annotations

from lockgate.plugins.web.models.base import Model


class UploadRow(Model):
    """An open upload.

    Attributes:
        owner: Id of its job; None without a known owner.
        begun_s: By the store's clock.
        action: What a sweep would do: `abort`, `keep`, `watch`, …
        why: Reason for the action.
    """

    key: str
    upload_id: str
    owner: str | None
    begun_s: float
    size_bytes: int | None
    action: str
    why: str


class UploadTotals(Model):
    """All open uploads of a destination, by owner or action.

    Attributes:
        monthly_usd: Approximate cost of a month; None for a store without a price.
    """

    action: str
    uploads: int
    size_bytes: int
    monthly_usd: float | None


class BlobJobRow(Model):
    """The blobs of one job."""

    blob_job: str
    references: int
    size_bytes: int
    staged: int
    goes_s: float | None


class BlobReference(Model):
    """A reference to a blob."""

    blob_key: str
    name: str
    size_bytes: int | None
    goes_s: float | None
