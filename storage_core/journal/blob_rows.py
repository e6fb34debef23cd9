"""Questions about blobs that more than a key or a column answers: what a sweep looks for, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sqlalchemy import and_, exists, select, tuple_

from storage_core.journal.reading import Reading
from storage_core.journal.rows import Blob, BlobJob, Reference, UploadSet
from storage_core.journal.schema import BLOB, BLOB_JOB, REFERENCE
from storage_core.journal.tables import columns_of, row_of

PAGE: Final = 1_000
"""Rows a question, and entries a transaction of a sweep."""


def owned_by(reading: Reading, owner: str) -> list[Reference]:
    """Return all references of an owner."""
    return list(reading.where(Reference, {"owner": owner}))


def staged_before(reading: Reading, at_s: float, *, limit: int = PAGE) -> list[Blob]:
    """Return blobs that nothing has referred to since a moment, the oldest first, and are not deleting yet.

    Args:
        reading: Of the primary, for a sweep that acts on it.
        at_s: By the journal's clock.
        limit: Greatest number.
    """
    asked = (
        select(*columns_of(Blob))
        .where(
            BLOB.c.journal == reading.journal,
            BLOB.c.staged_s <= at_s,
            BLOB.c.deleting_s.is_(None),
        )
        .order_by(BLOB.c.staged_s)
        .limit(limit)
    )
    return [row_of(Blob, row) for row in reading.connection.execute(asked)]


def deleting(reading: Reading, *, limit: int = PAGE) -> list[Blob]:
    """Return blobs that are marked, whose bytes may be gone or not."""
    asked = (
        select(*columns_of(Blob))
        .where(BLOB.c.journal == reading.journal, BLOB.c.deleting_s.is_not(None))
        .order_by(BLOB.c.deleting_s)
        .limit(limit)
    )
    return [row_of(Blob, row) for row in reading.connection.execute(asked)]


def lapsed_references(reading: Reading, at_s: float, *, limit: int = PAGE) -> list[Reference]:
    """Return references whose owners did not come in time."""
    asked = (
        select(*columns_of(Reference))
        .where(REFERENCE.c.journal == reading.journal, REFERENCE.c.until_s <= at_s)
        .order_by(REFERENCE.c.until_s)
        .limit(limit)
    )
    return [row_of(Reference, row) for row in reading.connection.execute(asked)]


def upload_sets(reading: Reading) -> list[UploadSet]:
    """Return the open upload sets."""
    return list(reading.where(UploadSet, {}))


def final_jobs(reading: Reading) -> list[BlobJob]:
    """Return the jobs that have ended and are not forgotten yet."""
    asked = select(*columns_of(BlobJob)).where(
        BLOB_JOB.c.journal == reading.journal, BLOB_JOB.c.final_s.is_not(None)
    )
    return [row_of(BlobJob, row) for row in reading.connection.execute(asked)]


def unstaged_unreferenced(reading: Reading) -> Iterator[Blob]:
    """Yield blobs that nothing keeps and that are not staged: there are none, unless a fold is wrong."""
    kept = exists().where(
        and_(
            REFERENCE.c.journal == BLOB.c.journal,
            REFERENCE.c.job_id == BLOB.c.job_id,
            REFERENCE.c.blob_key == BLOB.c.blob_key,
        )
    )
    asked = select(*columns_of(Blob)).where(
        BLOB.c.journal == reading.journal,
        BLOB.c.staged_s.is_(None),
        BLOB.c.deleting_s.is_(None),
        BLOB.c.upload_set == "",
        ~kept,
    )
    for row in reading.connection.execute(asked):
        yield row_of(Blob, row)


def blobs_of(
    reading: Reading, job_id: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = PAGE
) -> Sequence[Blob]:
    """Return a page of the blobs of one job, or of all, by job and key.

    Args:
        reading: Of an observer or the primary.
        job_id: Of the job; None: all.
        after: The job and the key of the last one of the page before.
        limit: Greatest number.
    """
    asked = select(*columns_of(Blob)).where(
        BLOB.c.journal == reading.journal, tuple_(BLOB.c.job_id, BLOB.c.blob_key) > after
    )
    if job_id is not None:
        asked = asked.where(BLOB.c.job_id == job_id)
    asked = asked.order_by(BLOB.c.job_id, BLOB.c.blob_key).limit(limit)
    return [row_of(Blob, row) for row in reading.connection.execute(asked)]
