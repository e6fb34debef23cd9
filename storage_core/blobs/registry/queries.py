"""Queries: blobs and what keeps them, page by page. They need more than keys and columns, so they are SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from sqlalchemy import BigInteger, ColumnElement, and_, cast, exists, func, select, tuple_, union

from lockgate.storage_core.blobs.registry.removals import RestageBlob
from lockgate.storage_core.blobs.registry.rows import Blob, BlobJob, Reference, UploadSet
from lockgate.storage_core.journal.database.bulk import matching, parameters
from lockgate.storage_core.journal.database.pipeline import is_sqlite
from lockgate.storage_core.journal.database.row_access import columns_of, row_of
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.read.snapshot_read import Reading

PAGE: Final = 1_000
"""Rows a question, and entries a transaction of a sweep."""

BLOB: Final = table_of(Blob)
REFERENCE: Final = table_of(Reference)
BLOB_JOB: Final = table_of(BlobJob)

_KEY: Final = (BLOB.c.job_id, BLOB.c.blob_key)


class JobBlobs(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the blob stores know it.

    Attributes:
        blobs: How many it has.
        size_bytes: Of them together.
        since_s: When the oldest of them was put, or it was submitted with none.
        destination: Of the commit job that it is, empty if it is none.
        commit_job: That job's id at the destination.
        submitted_s: None: it was not.
        final_s: When it ended, after which all its blobs go; None: it has not.
    """

    job_id: str
    blobs: int
    size_bytes: int
    since_s: float
    destination: str = ""
    commit_job: str = ""
    submitted_s: float | None = None
    final_s: float | None = None


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
    asked = select(*columns_of(Blob)).where(*_staged_before(reading, at_s))
    asked = asked.order_by(BLOB.c.staged_s).limit(limit)
    return [row_of(Blob, row) for row in reading.connection.execute(asked)]


def every_staged(reading: Reading, at_s: float) -> Iterator[Blob]:
    """Yield all that `staged_before` returns pages of, within one transaction that changes none of it."""
    asked = select(*columns_of(Blob)).where(*_staged_before(reading, at_s)).order_by(BLOB.c.staged_s)
    for row in reading.connection.execute(asked.execution_options(yield_per=PAGE)):
        yield row_of(Blob, row)


def restaged(reading: Reading) -> Iterator[RestageBlob]:
    """Yield the entries that give all that is staged a whole interval again."""
    for blob in every_staged(reading, reading.now_s()):
        yield RestageBlob(job_id=blob.job_id, blob_key=blob.blob_key)


def deleting(reading: Reading, *, after: Blob | None = None, limit: int = PAGE) -> list[Blob]:
    """Return a page of the blobs that are marked, whose bytes may be gone or not.

    Args:
        reading: Of the primary, for a sweep that acts on it.
        after: The last one of the page before.
        limit: Greatest number.
    """
    order = (BLOB.c.deleting_s, *_KEY)
    asked = select(*columns_of(Blob)).order_by(*order).limit(limit)
    asked = asked.where(BLOB.c.journal == reading.journal, BLOB.c.deleting_s.is_not(None))
    if after is not None:
        asked = asked.where(tuple_(*order) > (after.deleting_s, after.job_id, after.blob_key))
    return [row_of(Blob, row) for row in reading.connection.execute(asked)]


def known_blobs(reading: Reading, keys: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of these pairs of job and key that have a row."""
    asked = matching([_KEY], [column.name for column in _KEY], is_sqlite(reading.connection))
    found = reading.connection.execute(asked, parameters(reading.journal, _KEY, keys))
    return {(row.job_id, row.blob_key) for row in found}


def lapsed_references(reading: Reading, at_s: float, *, limit: int = PAGE) -> list[Reference]:
    """Return references whose owners did not come in time."""
    asked = (
        select(*columns_of(Reference))
        .where(REFERENCE.c.journal == reading.journal, REFERENCE.c.until_s <= at_s)
        .order_by(REFERENCE.c.until_s)
        .limit(limit)
    )
    return [row_of(Reference, row) for row in reading.connection.execute(asked)]


def lapsed_count(reading: Reading, at_s: float) -> int:
    """Return of how many references the owners did not come in time."""
    asked = select(func.count()).where(REFERENCE.c.journal == reading.journal, REFERENCE.c.until_s <= at_s)
    return int(reading.connection.execute(asked).scalar_one())


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


def jobs_of(
    reading: Reading, job_id: str | None = None, *, after: str = "", limit: int = PAGE
) -> list[JobBlobs]:
    """Return a page of the jobs that have blobs or were submitted, by name; of `no_job`, too.

    Args:
        reading: Of an observer or the primary.
        job_id: Only this one.
        after: The last one of the page before.
        limit: Greatest number.
    """
    named = [
        select(table.c.job_id).where(
            table.c.journal == reading.journal,
            table.c.job_id > after if job_id is None else table.c.job_id == job_id,
        )
        for table in (BLOB, BLOB_JOB)
    ]
    jobs = union(*named).order_by("job_id").limit(limit).subquery()
    told = (BLOB_JOB.c.destination, BLOB_JOB.c.commit_job, BLOB_JOB.c.submitted_s, BLOB_JOB.c.final_s)
    asked = (
        select(
            jobs.c.job_id,
            func.count(BLOB.c.blob_key),
            cast(func.coalesce(func.sum(BLOB.c.size_bytes), 0), BigInteger),
            func.coalesce(func.min(BLOB.c.put_s), BLOB_JOB.c.submitted_s),
            func.coalesce(BLOB_JOB.c.destination, ""),
            func.coalesce(BLOB_JOB.c.commit_job, ""),
            BLOB_JOB.c.submitted_s,
            BLOB_JOB.c.final_s,
        )
        .outerjoin(BLOB, and_(BLOB.c.journal == reading.journal, BLOB.c.job_id == jobs.c.job_id))
        .outerjoin(BLOB_JOB, and_(BLOB_JOB.c.journal == reading.journal, BLOB_JOB.c.job_id == jobs.c.job_id))
        .group_by(jobs.c.job_id, *told)
        .order_by(jobs.c.job_id)
    )
    names = JobBlobs.__struct_fields__
    return [
        msgspec.convert(dict(zip(names, row, strict=True)), JobBlobs)
        for row in reading.connection.execute(asked)
    ]


def references_of(
    reading: Reading, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
) -> Sequence[Reference]:
    """Return what keeps blobs, by job, blob or owner."""
    given = {"job_id": job_id, "blob_key": blob_key, "owner": owner}
    return reading.where(Reference, {name: value for name, value in given.items() if value is not None})


def _staged_before(reading: Reading, at_s: float) -> tuple[ColumnElement[bool], ...]:
    return BLOB.c.journal == reading.journal, BLOB.c.staged_s <= at_s, BLOB.c.deleting_s.is_(None)
