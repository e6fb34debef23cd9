"""What a sweep has taken so far, in bounded memory."""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.reports import Amount, SweptBlob, Why

LISTED: Final = 1_000
"""So many blobs a report names; of all it tells number and bytes."""

PROBLEMS: Final = 20


class Tally:
    """Counts blobs by why they were taken.

    Attributes:
        swept: How many by why, and their bytes.
        blobs: The first of them.
        left: How many a store kept.
        problems: What the stores said, the first of it.
    """

    def __init__(self) -> None:
        self.swept: dict[Why, Amount] = {}
        self.blobs: list[SweptBlob] = []
        self.left = 0
        self.problems: list[str] = []

    def take(self, why: Why, job_id: str, blob_key: str, size_bytes: int) -> None:
        """Count a blob that was taken, and name it if there is room."""
        self.add(why, Amount(blobs=1, size_bytes=size_bytes))
        self.name(why, job_id, blob_key, size_bytes)

    def add(self, why: Why, amount: Amount) -> None:
        """Count blobs that were taken."""
        self.swept[why] = self.swept.get(why, Amount()) + amount

    def name(self, why: Why, job_id: str, blob_key: str, size_bytes: int) -> None:
        """Name a blob that was taken, if there is room."""
        if len(self.blobs) < LISTED:
            self.blobs.append(
                SweptBlob(job_id=job_id, blob_key=BlobKey(blob_key), size_bytes=size_bytes, why=why)
            )

    def keep(self, blobs: int, problem: str) -> None:
        """Count blobs that a store kept, and why."""
        self.left += blobs
        if len(self.problems) < PROBLEMS and problem not in self.problems:
            self.problems.append(problem)
