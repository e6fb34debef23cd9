"""Delete what an ended job leaves: open uploads, staged files and records that are no longer needed.

Each function may be repeated, and may fail: a sweep deletes the rest.
Source: commit protocol, step 9, and "Orphans".
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import Outcome
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.commit.staged_files import drop_temporary, staging_dir
from lockgate.storage_core.commit.uploads.own_uploads import JobUploads, uploads_of_job
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    LockgateError,
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import ObjectInfo


class Marks(NamedTuple):
    """The decision of a job, and the outcome of the turn that it names."""

    decision: Decision | None
    outcome: Outcome | None


def abort_uploads(
    folder: JobFolder,
    job: JobRecord,
    settings: Settings,
    marks: Marks,
    uploads: JobUploads | None = None,
) -> Iterator[FileResult]:
    """Abort the open uploads with the job's short id in their key, or that a pending set of the job names.

    If the destination has very many uploads of other jobs, only those that a pending set names are aborted;
    the sweep, which lists all uploads once for all ended jobs, aborts the rest.

    The job must be decided: before that, the commit may still need them.

    Args:
        folder: Folder of the job.
        job: Record of the job.
        settings: Settings.
        marks: Decision and outcome of the job.
        uploads: Its open uploads, listed after its files were completed; by default they are listed now.
    """
    store = folder.store

    def own() -> Iterator[tuple[str, str]]:
        listed = uploads_of_job(store, job) if uploads is None else uploads
        yield from listed.found
        if not job.spec.unique_filenames or not listed.is_complete:
            yield from _uploads_of_pending_sets(folder, marks)

    def abort(upload: tuple[str, str]) -> FileResult:
        try:
            store.abort_upload(*upload)
        except LockgateError as error:
            return FileResult(key=upload[0], result="left", detail=f"upload not aborted: {error}")
        return FileResult(key=upload[0], result="aborted")

    with step("abort-uploads"):
        yield from in_parallel(abort, own(), settings.near_calls, settings.far_calls)


def _uploads_of_pending_sets(folder: JobFolder, marks: Marks) -> Iterator[tuple[str, str]]:
    """Yield key and id of the uploads that a job's pending sets name, without those that it published."""
    published: set[str] = set()
    decision, outcome = marks
    # The uploads of an unreadable pending set have no owner; the sweep aborts them.
    with suppress(MalformedRecordError, ObjectNotFoundError):
        if decision is not None and outcome is not None and outcome.verdict == "published":
            plan = read_plan(folder, decision.plan or "")
            published.update(file.upload.upload_id for file in plan.all_additions())
        for found, *_ in folder.pending_sets():
            for file in found.files:
                if file.upload.upload_id not in published:
                    yield file.key, file.upload.upload_id


def delete_staged_files(folder: JobFolder, job: JobRecord, settings: Settings) -> None:
    """Delete the files and directories that the attempts of an ended job wrote on disk."""
    shutil.rmtree(staging_dir(job, settings), ignore_errors=True)
    drop_temporary(folder.store, job.job_id)


def clean_up(
    folder: JobFolder,
    job: JobRecord,
    settings: Settings,
    listed: Iterable[Sequence[ObjectInfo]] | None = None,
) -> None:
    """Delete what an ended job left, except `job.json`, markers, audits and report.

    The lease is deleted last: an ended job with a lease still needs its clean-up.

    Args:
        folder: Folder of the job.
        job: Record of the job.
        settings: Settings.
        listed: Pages of the folder's objects; by default they are listed now.

    Raises:
        NotAppliedError: The store refused to delete some of it; recovery and the sweep try again.
    """
    with step("clean-up"):
        delete_staged_files(folder, job, settings)
        pages = folder.store.pages(folder.prefix) if listed is None else listed
        unneeded = (keys for page in pages if (keys := _unneeded(folder, page)))
        delete_pages(folder, unneeded)
        folder.store.delete(folder.key("lease.json"))


def delete_pages(folder: JobFolder, pages: Iterable[Sequence[str]]) -> None:
    """Delete keys of a job's folder.

    Raises:
        NotAppliedError: The store refused to delete some of them.
    """
    failures = [failure for keys in pages for failure in folder.store.delete_many(keys)]
    if failures:
        raise NotAppliedError(
            f"job {folder.job_id} at {folder.store.url}: {len(failures)} of its records could not be "
            f"deleted, such as {failures[0].key} ({failures[0].reason}); no data is affected; allow it, then "
            "recovery and the sweep delete the rest"
        )


def _unneeded(folder: JobFolder, page: Sequence[ObjectInfo]) -> list[str]:
    prefixes = tuple(folder.key(prefix) for prefix in ("tasks/", "plan/", "attempts/"))
    return [info.key for info in page if info.key.startswith(prefixes)]
