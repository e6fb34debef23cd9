"""JSON bodies that client and server exchange, and entity tags."""

from __future__ import annotations

from typing import Final

import msgspec

from lockgate.storage_core.blobs.blob_protocol import Lapse
from lockgate.storage_core.blobs.keys import BlobKey, UploadSetId
from lockgate.storage_core.blobs.registry.blob_rows import Blob, Reference
from lockgate.storage_core.blobs.registry.queries import JobBlobs
from lockgate.storage_core.blobs.reports import BlobSweepReport
from lockgate.storage_core.http.problems import ErrorBody
from lockgate.storage_core.stamp import Stamp

BLOB: Final = "application/octet-stream"
LINES: Final = "application/x-ndjson"


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON body that refuses unknown fields."""


class BeginSet(Message, frozen=True):
    """Open an upload set, which `holder` renews."""

    holder: str


class SetBegun(msgspec.Struct, frozen=True):
    """An opened set, and the stamp with which its holder renews it."""

    upload_set: UploadSetId
    stamp: Stamp


class CompleteSet(Message, frozen=True):
    """Stage the blobs of a set."""

    request_id: str | None = None


class Count(msgspec.Struct, frozen=True):
    """How many blobs or references a call changed."""

    count: int


class RenewSets(Message, frozen=True):
    """Renew the sets of a holder, each with its stamp."""

    holder: str
    held: dict[UploadSetId, Stamp]


class SetsRenewed(msgspec.Struct, frozen=True):
    """A message for each set whose lease is lost."""

    lost: dict[UploadSetId, str]


class Submit(Message, frozen=True):
    """Refer to blobs on behalf of a job."""

    blob_keys: tuple[BlobKey, ...]
    destination: str = ""
    commit_job: str = ""


class Refer(Message, frozen=True):
    """Keep a blob for an owner."""

    owner: str
    lapse_s: Lapse | None = None


class Drop(Message, frozen=True):
    """End an owner's reference to a blob."""

    owner: str


class DropOwner(Message, frozen=True):
    """End all references that an owner took up to a time; None: up to now."""

    owner: str
    taken_by_s: float | None = None


class ServerTime(msgspec.Struct, frozen=True):
    """A time by the journal's clock."""

    at_s: float


class SweepRequest(Message, frozen=True):
    """Sweep; see `Blobs.sweep`."""

    dry_run: bool
    orphans: bool | None = None


class SweepLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the response to a sweep: its progress, or its end. An empty one is a sign of life."""

    step: str = ""
    done: int = 0
    total: int = 0
    report: BlobSweepReport | None = None
    error: ErrorBody | None = msgspec.field(default=None, name="trouble")


class Verify(Message, frozen=True):
    """Verify a page of blobs; see `Blobs.verify`."""

    job_id: str | None = None
    after: tuple[str, str] = ("", "")
    deep: bool = False
    heal: bool = False


class Page(msgspec.Struct, frozen=True):
    """A page of blobs, ordered by job and key; an empty page is the end."""

    blobs: tuple[Blob, ...]


class Jobs(msgspec.Struct, frozen=True):
    """A page of jobs, ordered by name; an empty page is the end."""

    jobs: tuple[JobBlobs, ...]


class References(msgspec.Struct, frozen=True):
    """References that keep blobs."""

    references: tuple[Reference, ...]


class Empty(Message, frozen=True):
    """A body without content."""


def etag_of(blob_key: BlobKey) -> str:
    """Return the entity tag of a blob, whose bytes never change."""
    return f'"{blob_key}"'
