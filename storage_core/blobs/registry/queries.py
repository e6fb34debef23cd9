"""Query blobs and references, in pages. They use SQL because they need more than keys and columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy import BigInteger, ColumnElement, and_, cast, func, select, tuple_, union

from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Reference, UploadSet
from lockgate.storage_core.blobs.registry.references import FailBlobJob, submitted_with
from lockgate.storage_core.blobs.registry.removals import RestageBlob
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.journal.database.bulk import matching, parameters
from lockgate.storage_core.journal.database.pipeline import is_sqlite
from lockgate.storage_core.journal.database.row_access import columns_of, row_of
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.entries.op import ResourceEnded
from lockgate.storage_core.journal.metrics import gauge
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stores.protocol import in_pages

PAGE: Final = 1_000
"""Rows in each query, and entries in each transaction of a sweep."""

BLOB: Final = table_of(Blob)
REFERENCE: Final = table_of(Reference)
BLOB_JOB: Final = table_of(BlobJob)

_KEY: Final = (BLOB.c.job_id, BLOB.c.blob_key)


class JobBlobs(msgspec.Struct, frozen=True, kw_only=True):
    """A job with blobs.

    Attributes:
        blobs: Number of blobs.
        size_bytes: Total size of the blobs.
        since_s: When the oldest blob was put, or when a job without blobs was submitted.
        destination: Destination of its commit job, empty if it has none.
        commit_job: Id of the commit job.
        submitted_s: When it was submitted, None if it was not.
        final_s: When it ended and its blobs became deletable, None before.
    """

    job_id: str
    blobs: int
    size_bytes: int
    since_s: float
    destination: str = ""
    commit_job: str = ""
    submitted_s: float | None = None
    final_s: float | None = None


def staged_before(reading: Reading, at_s: float) -> list[Blob]:
    """Return a page of blobs that are unreferenced since `at_s` and not marked, the oldest first."""
    query = select(*columns_of(Blob)).where(*_staged_before(reading, at_s))
    query = query.order_by(BLOB.c.staged_s).limit(PAGE)
    return [row_of(Blob, row) for row in reading.connection.execute(query)]


def every_staged(reading: Reading, at_s: float) -> Iterator[Blob]:
    """Yield all blobs that `staged_before` returns in pages, as a stream."""
    query = select(*columns_of(Blob)).where(*_staged_before(reading, at_s)).order_by(BLOB.c.staged_s)
    for row in reading.connection.execute(query.execution_options(yield_per=PAGE)):
        yield row_of(Blob, row)


def restaged(reading: Reading) -> Iterator[RestageBlob]:
    """Yield the entries that restart the retention interval of all staged blobs."""
    for blob in every_staged(reading, reading.now_s()):
        yield RestageBlob(job_id=blob.job_id, blob_key=blob.blob_key)


def deleting(reading: Reading, *, after: Blob | None = None) -> list[Blob]:
    """Return a page of the blobs marked for deletion. Their bytes may already be deleted."""
    order = (BLOB.c.deleting_s, *_KEY)
    query = select(*columns_of(Blob)).order_by(*order).limit(PAGE)
    query = query.where(BLOB.c.journal == reading.journal, BLOB.c.deleting_s.is_not(None))
    if after is not None:
        query = query.where(tuple_(*order) > (after.deleting_s, after.job_id, after.blob_key))
    return [row_of(Blob, row) for row in reading.connection.execute(query)]


def releases(reading: Reading, resource: str) -> Iterator[FailBlobJob]:
    """Yield the entries that release what a job's failed driver leaves, a page of blobs in each."""
    ((_, columns, values),) = submitted_with(ResourceEnded(resource=resource))
    for job in reading.where(BlobJob, dict(zip(columns, values, strict=True))):
        yield from releases_of(reading, job.job_id, resource)


def releases_of(reading: Reading, job_id: str, resource: str = "") -> Iterator[FailBlobJob]:
    """Yield the entries that drop a failed job's references to recreatable blobs, a page in each."""
    page: Sequence[Blob] = ()
    while page := blobs_of(reading, job_id, after=page[-1].key if page else ("", "")):
        keys = tuple(one.blob_key for one in page if one.guarantee == "recreatable" and one.staged_s is None)
        if keys:
            yield FailBlobJob(job_id=job_id, blob_keys=keys, resource=resource)


def pages_of_set(reading: Reading, upload_set: str) -> Iterator[Sequence[Blob]]:
    """Yield the full pages of the blobs in an upload set, by job and key; the set's end stages the rest."""
    blobs = reading.within(Blob, ("upload_set",), [(upload_set,)])
    return (page for page in in_pages(sorted(blobs, key=attrgetter("key")), PAGE) if len(page) == PAGE)


def known_blobs(reading: Reading, keys: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs of job and key that have a row."""
    query = matching([_KEY], [column.name for column in _KEY], is_sqlite(reading.connection))
    found = reading.connection.execute(query, parameters(reading.journal, _KEY, keys))
    return {(row.job_id, row.blob_key) for row in found}


def lapsed_references(reading: Reading, at_s: float) -> list[Reference]:
    """Return a page of lapsed references, the oldest first."""
    query = (
        select(*columns_of(Reference))
        .where(REFERENCE.c.journal == reading.journal, REFERENCE.c.until_s <= at_s)
        .order_by(REFERENCE.c.until_s)
        .limit(PAGE)
    )
    return [row_of(Reference, row) for row in reading.connection.execute(query)]


def lapsed_count(reading: Reading, at_s: float) -> int:
    """Return the number of lapsed references."""
    query = select(func.count()).where(REFERENCE.c.journal == reading.journal, REFERENCE.c.until_s <= at_s)
    return int(reading.connection.execute(query).scalar_one())


def blob_metrics(reading: Reading) -> Iterator[GaugeMetricFamily]:
    """Yield since when the oldest blob waits for a sweep: the ages grow while sweeps do not keep up."""
    found, now_s = (
        gauge("blobs_oldest_seconds", "Age of the oldest blob in this state; 0: none", "state"),
        reading.now_s(),
    )
    for state, column in (("unreferenced", BLOB.c.staged_s), ("deleting", BLOB.c.deleting_s)):
        query = select(func.min(column)).where(BLOB.c.journal == reading.journal)  # by an index
        since_s = reading.connection.execute(query).scalar_one()
        found.add_metric([reading.journal, state], 0 if since_s is None else max(0.0, now_s - since_s))
    yield found


def upload_sets(reading: Reading) -> list[UploadSet]:
    """Return the open upload sets."""
    return list(reading.where(UploadSet, {}))


def final_jobs(reading: Reading) -> list[BlobJob]:
    """Return the ended jobs that still have a row."""
    query = select(*columns_of(BlobJob)).where(
        BLOB_JOB.c.journal == reading.journal, BLOB_JOB.c.final_s.is_not(None)
    )
    return [row_of(BlobJob, row) for row in reading.connection.execute(query)]


def blobs_of(
    reading: Reading, job_id: str | None = None, *, after: tuple[str, str] = ("", "")
) -> Sequence[Blob]:
    """Return a page of the blobs of one job, or of all, by job and key."""
    query = select(*columns_of(Blob)).where(
        BLOB.c.journal == reading.journal, tuple_(BLOB.c.job_id, BLOB.c.blob_key) > after
    )
    if job_id is not None:
        query = query.where(BLOB.c.job_id == job_id)
    query = query.order_by(BLOB.c.job_id, BLOB.c.blob_key).limit(PAGE)
    return [row_of(Blob, row) for row in reading.connection.execute(query)]


def jobs_of(
    reading: Reading, job_id: str | None = None, *, after: str = "", limit: int = PAGE
) -> list[JobBlobs]:
    """Return a page of the jobs that have blobs or were submitted, by name, including `no_job`."""
    named = [
        select(table.c.job_id).where(
            table.c.journal == reading.journal,
            table.c.job_id > after if job_id is None else table.c.job_id == job_id,
        )
        for table in (BLOB, BLOB_JOB)
    ]
    jobs = union(*named).order_by("job_id").limit(limit).subquery()
    columns = (BLOB_JOB.c.destination, BLOB_JOB.c.commit_job, BLOB_JOB.c.submitted_s, BLOB_JOB.c.final_s)
    query = (
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
        .group_by(jobs.c.job_id, *columns)
        .order_by(jobs.c.job_id)
    )
    names = JobBlobs.__struct_fields__
    return [
        convert(dict(zip(names, row, strict=True)), JobBlobs) for row in reading.connection.execute(query)
    ]


def references_of(
    reading: Reading, *, job_id: str | None = None, blob_key: str | None = None, owner: str | None = None
) -> Sequence[Reference]:
    """Return references, filtered by job, blob or owner."""
    given = {"job_id": job_id, "blob_key": blob_key, "owner": owner}
    return reading.where(Reference, {name: value for name, value in given.items() if value is not None})


def references_to(reading: Reading, job_id: str, blob_keys: Sequence[str]) -> list[Reference]:
    """Return a page of the references to some blobs of a job."""
    query = select(*columns_of(Reference)).where(
        REFERENCE.c.journal == reading.journal,
        REFERENCE.c.job_id == job_id,
        REFERENCE.c.blob_key.in_(blob_keys),
    )
    return [row_of(Reference, row) for row in reading.connection.execute(query.limit(PAGE))]


def _staged_before(reading: Reading, at_s: float) -> tuple[ColumnElement[bool], ...]:
    return BLOB.c.journal == reading.journal, BLOB.c.staged_s <= at_s, BLOB.c.deleting_s.is_(None)
