"""What the upkeep of blobs did, or would do: the sweep and the verification, as they are told of."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """Blobs, and their bytes together."""

    blobs: int = 0
    size_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Add up."""
        return Amount(blobs=self.blobs + other.blobs, size_bytes=self.size_bytes + other.size_bytes)


class Why(StrEnum):
    """Why a sweep takes a blob."""

    STAGED = "staged"
    """Nothing has referred to it for a whole interval."""
    FINAL = "final job"
    """Its job has ended."""
    MARKED = "marked"
    """An earlier sweep marked it, and did not come to its end."""
    ORPHAN = "orphan"
    """Bytes without a row: staged now, deleted by a later sweep."""


class SweptBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that a sweep took, or would take."""

    job_id: str
    blob_key: BlobKey
    size_bytes: int
    why: Why


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep did; a dry run: what a sweep now would do.

    Attributes:
        lapsed_references: Dropped: their owners never came.
        abandoned_sets: Given up: their uploaders are gone.
        swept: By why they were taken; an orphan is staged, everything else deleted.
        final_jobs: Ended jobs whose folders were deleted, or looked at again.
        forgotten_jobs: Of those: an interval has passed, their rows are gone, too.
        aborted_uploads: Multipart uploads in the HA store that no open set explained.
        sought_orphans: Whether the stores were listed.
        blobs: The first of those that were taken, at most `LISTED`.
        left: Blobs whose bytes a store kept: the next sweep tries again.
        problems: What the stores said to that.
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
        """All that was deleted, or would be."""
        return sum((amount for why, amount in self.swept.items() if why is not Why.ORPHAN), Amount())

    def rows(self) -> list[tuple[str, int, int | None]]:
        """Return for a table, of all that there was: what, how many, and their bytes where it has any."""
        amounts = [(_SAID[why], amount.blobs, amount.size_bytes) for why, amount in self.swept.items()]
        counts = [
            ("references that lapsed", self.lapsed_references),
            ("upload sets given up", self.abandoned_sets),
            ("ended jobs", self.final_jobs),
            ("ended jobs forgotten", self.forgotten_jobs),
            ("uploads of nobody aborted", self.aborted_uploads),
            ("blobs that a store kept", self.left),
        ]
        return [*amounts, *((what, count, None) for what, count in counts if count)]


_SAID: Final = {
    Why.STAGED: "unreferenced for an interval: deleted",
    Why.FINAL: "of ended jobs: deleted",
    Why.MARKED: "marked by an earlier sweep: deleted",
    Why.ORPHAN: "known to no row: staged",
}


class Fault(StrEnum):
    """What is wrong with a copy of a blob."""

    MISSING = "missing"
    DAMAGED = "damaged"


class Copy(StrEnum):
    """Which copy it is."""

    LOCAL = "local"
    HA = "ha"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that is kept and has not what it should have.

    Attributes:
        faults: By copy.
        is_lost: No copy is whole: its bytes are gone.
        is_healed: The copy that was whole has replaced the other one.
    """

    job_id: str
    blob_key: BlobKey
    name: str
    size_bytes: int
    faults: dict[Copy, Fault]
    is_lost: bool
    is_healed: bool = False


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A page of blobs that were looked at.

    Attributes:
        blobs: How many.
        size_bytes: Of them together.
        findings: What is wrong.
        after: Job and key of the last one, from which the next page goes on; None: there is none.
    """

    blobs: int
    size_bytes: int
    findings: tuple[Finding, ...]
    after: tuple[str, str] | None
