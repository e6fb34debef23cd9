"""What client and server say to each other, apart from a blob's bytes."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Final

import msgspec

from lockgate.storage_core import errors
from lockgate.storage_core.blobs.keys import BlobKey, UploadSetId
from lockgate.storage_core.blobs.protocol import Lapse
from lockgate.storage_core.blobs.registry.queries import JobBlobs
from lockgate.storage_core.blobs.registry.rows import Blob, Reference
from lockgate.storage_core.blobs.reports import BlobSweepReport
from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    CorruptBlobError,
    FencedError,
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    SafeModeError,
    StoreUnavailableError,
)
from lockgate.storage_core.stamp import Stamp

BLOB: Final = "application/octet-stream"
LINES: Final = "application/x-ndjson"

_STATUS: Final[tuple[tuple[type[LockgateError], int], ...]] = (
    (InvalidInputError, 400),
    (AccessDeniedError, 403),
    (ObjectNotFoundError, 404),
    (ConflictError, 409),
    (FencedError, 409),
    (CorruptBlobError, 422),
    (SafeModeError, 423),
    (StoreUnavailableError, 503),
    (JournalUnavailableError, 503),
    (NotAppliedError, 409),
    (OutcomeUnknownError, 504),
)


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's or an answer's JSON."""


class Trouble(msgspec.Struct, frozen=True):
    """Why a call failed.

    Attributes:
        error: The name of one of `lockgate.storage_core.errors`.
        message: Who, which call, its effect, the next step.
    """

    error: str
    message: str


class BeginSet(Message, frozen=True):
    """Open an upload set; `holder` renews it."""

    holder: str


class SetBegun(msgspec.Struct, frozen=True):
    """The set, and the stamp with which its holder renews it."""

    upload_set: UploadSetId
    stamp: Stamp


class CompleteSet(Message, frozen=True):
    """Stage a set's blobs."""

    request_id: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """How many there were."""

    count: int


class RenewSets(Message, frozen=True):
    """Renew all sets of a holder, each with its stamp."""

    holder: str
    held: dict[UploadSetId, Stamp]


class SetsRenewed(msgspec.Struct, frozen=True):
    """A word about each set that is lost."""

    lost: dict[UploadSetId, str]


class Submit(Message, frozen=True):
    """Make blobs a job's own."""

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
    """End all references of an owner that it had taken by a moment; None: by now."""

    owner: str
    taken_by_s: float | None = None


class ServerTime(msgspec.Struct, frozen=True):
    """A moment, by the journal's clock."""

    at_s: float


class SweepOrder(Message, frozen=True):
    """What to do; see `sweep.sweep`."""

    dry_run: bool
    orphans: bool | None = None


class SweepLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the answer: how far it is, or how it ended. An empty one only says that the server lives."""

    step: str = ""
    done: int = 0
    total: int = 0
    report: BlobSweepReport | None = None
    trouble: Trouble | None = None


class Verify(Message, frozen=True):
    """Look at a page of blobs; see `Blobs.verify`."""

    job_id: str | None = None
    after: tuple[str, str] = ("", "")
    deep: bool = False
    heal: bool = False


class Page(msgspec.Struct, frozen=True):
    """Some blobs, by job and key; ask for those after the last one until there is none."""

    blobs: tuple[Blob, ...]


class Jobs(msgspec.Struct, frozen=True):
    """Some jobs, by name; ask for those after the last one until there is none."""

    jobs: tuple[JobBlobs, ...]


class References(msgspec.Struct, frozen=True):
    """What keeps a blob."""

    references: tuple[Reference, ...]


class Nothing(Message, frozen=True):
    """There is nothing to say."""


def etag_of(blob_key: BlobKey) -> str:
    """Return the entity tag of a blob: its bytes never change."""
    return f'"{blob_key}"'


def status_of(error: LockgateError) -> int:
    """Return the HTTP status that goes with an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def trouble_of(error: LockgateError) -> Trouble:
    """Return an error as it travels: under the nearest name that every client knows."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _kinds())
    return Trouble(error=name, message=str(error))


def error_of(trouble: Trouble) -> LockgateError:
    """Return the error that was told of; a name from a newer server says nothing about the effect."""
    return _kinds().get(trouble.error, OutcomeUnknownError)(trouble.message)


@cache
def _kinds() -> dict[str, type[LockgateError]]:
    return {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, LockgateError)
    }
