"""Reports of a sweep and of a verification, with counts in bounded memory."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey

LISTED: Final = 1_000
"""Number of blobs that a report names; it counts all of them."""

PROBLEMS: Final = 20


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of blobs, and their total size."""

    blobs: int = 0
    size_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Return the sum."""
        return Amount(blobs=self.blobs + other.blobs, size_bytes=self.size_bytes + other.size_bytes)


class Why(StrEnum):
    """Reason why a sweep deletes or stages a blob."""

    STAGED = "staged"
    """It had no reference for a whole interval."""
    FINAL = "final job"
    """Its job has ended."""
    MARKED = "marked"
    """An earlier sweep marked it and was interrupted."""
    ORPHAN = "orphan"
    """It has no row: staged now, deleted by a later sweep."""


class SweptBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that a sweep deleted or staged, or would."""

    job_id: str
    blob_key: BlobKey
    size_bytes: int
    why: Why


class BlobSweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a sweep; for a dry run, what a sweep would do now.

    Attributes:
        lapsed_references: Number of lapsed references dropped.
        abandoned_sets: Number of upload sets abandoned, because their uploaders are gone.
        swept: Amounts by reason; orphans are staged, everything else is deleted.
        final_jobs: Number of ended jobs whose folders were deleted or checked again.
        forgotten_jobs: Those of them whose rows were deleted, too, after an interval.
        aborted_uploads: Number of multipart uploads in the HA store aborted, because their set is not open.
        sought_orphans: Whether the stores were listed.
        blobs: The first `LISTED` of the blobs.
        left: Number of blobs whose bytes a store kept; the next sweep tries again.
        problems: Errors of the stores.
    """

    is_dry_run: bool
    lapsed_references: int = 0
    abandoned_sets: int = 0
    swept: dict[Why, Amount] = {}
    final_jobs: int = 0
    forgotten_jobs: int = 0
    aborted_uploads: int = 0
    sought_orphans: bool = False
    blobs: tuple[SweptBlob, ...] = ()
    left: int = 0
    problems: tuple[str, ...] = ()

    @property
    def deleted(self) -> Amount:
        """Amount that was deleted, or would be."""
        return sum((amount for why, amount in self.swept.items() if why is not Why.ORPHAN), Amount())

    def rows(self) -> list[tuple[str, int, int | None]]:
        """Return the rows of a table, without empty ones: label, number, and size if it has one."""
        amounts = [(_LABELS[why], amount.blobs, amount.size_bytes) for why, amount in self.swept.items()]
        counts = [
            ("lapsed references dropped", self.lapsed_references),
            ("upload sets abandoned", self.abandoned_sets),
            ("ended jobs", self.final_jobs),
            ("ended jobs forgotten", self.forgotten_jobs),
            ("orphaned uploads aborted", self.aborted_uploads),
            ("blobs that a store kept", self.left),
        ]
        return [*amounts, *((what, count, None) for what, count in counts if count)]


_LABELS: Final = {
    Why.STAGED: "unreferenced for an interval: deleted",
    Why.FINAL: "of ended jobs: deleted",
    Why.MARKED: "marked by an earlier sweep: deleted",
    Why.ORPHAN: "without a row: staged",
}


class Tally:
    """Count blobs by reason.

    Attributes:
        swept: Amounts by reason.
        blobs: The first of the blobs.
        left: Number of blobs that a store kept.
        problems: The first errors of the stores.
    """

    def __init__(self) -> None:
        self.swept: dict[Why, Amount] = {}
        self.blobs: list[SweptBlob] = []
        self.left = 0
        self.problems: list[str] = []

    def take(self, why: Why, job_id: str, blob_key: str, size_bytes: int) -> None:
        """Count a blob, and list it if there is room."""
        self.add(why, Amount(blobs=1, size_bytes=size_bytes))
        self.name(why, job_id, blob_key, size_bytes)

    def add(self, why: Why, amount: Amount) -> None:
        """Count blobs."""
        self.swept[why] = self.swept.get(why, Amount()) + amount

    def name(self, why: Why, job_id: str, blob_key: str, size_bytes: int) -> None:
        """List a blob if there is room."""
        if len(self.blobs) < LISTED:
            self.blobs.append(
                SweptBlob(job_id=job_id, blob_key=BlobKey(blob_key), size_bytes=size_bytes, why=why)
            )

    def add_left(self, blobs: int, problem: str) -> None:
        """Count blobs that a store kept, and list the problem."""
        self.left += blobs
        if len(self.problems) < PROBLEMS and problem not in self.problems:
            self.problems.append(problem)


class Fault(StrEnum):
    """Fault of a copy."""

    MISSING = "missing"
    DAMAGED = "damaged"


class Copy(StrEnum):
    """A copy of a blob, by its store."""

    LOCAL = "local"
    HA = "ha"


class BlobFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that is kept and has a faulty copy.

    Attributes:
        faults: Faults by copy.
        is_lost: Whether no copy is good.
        is_healed: Whether the good copy has replaced the bad one.
    """

    job_id: str
    blob_key: BlobKey
    name: str
    size_bytes: int
    faults: dict[Copy, Fault]
    is_lost: bool
    is_healed: bool = False


class VerifiedPage(msgspec.Struct, frozen=True, kw_only=True):
    """Result of verifying a page of blobs.

    Attributes:
        blobs: Number of blobs.
        size_bytes: Total size of them.
        findings: Blobs with a faulty copy.
        after: Job and key of the last blob, to request the next page; None: there is no more.
    """

    blobs: int
    size_bytes: int
    findings: tuple[BlobFinding, ...]
    after: tuple[str, str] | None
