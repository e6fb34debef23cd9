"""What is left of a job when it has ended: open uploads, staged files, records that nobody needs.

Everything here may be repeated, fail, or not happen at all: the sweeps look again.
Source: commit protocol, step 9, and "Orphans".
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress

from lockgate.storage_core.commit.records.job import FileFate, JobRecord
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.staged_files.directories import staging_dir
from lockgate.storage_core.commit.temporary import drop_temporary
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import LockgateError, MalformedRecordError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import short_id_in
from lockgate.storage_core.settings import Settings


def abort_uploads(folder: JobFolder, job: JobRecord, settings: Settings) -> Iterator[FileFate]:
    """Abort every open upload that carries the job's short id, or that one of its pending sets names.

    Only for a job that is decided: until then a pending set's uploads are nobody's to abort.
    """
    store = folder.store

    def own() -> Iterator[tuple[str, str]]:
        for page in store.upload_pages():
            for info in page:
                if short_id_in(info.key) == job.short_id:
                    yield info.key, info.upload_id
        if not job.spec.unique_filenames:
            # One that cannot be read names nothing: its uploads are ownerless, and the sweep takes them.
            with suppress(MalformedRecordError):
                for found, _ in folder.pending_sets():
                    for file in found.files:
                        yield file.key, file.upload.upload_id

    def abort(upload: tuple[str, str]) -> FileFate:
        try:
            store.abort_upload(*upload)
        except LockgateError as error:
            return FileFate(key=upload[0], fate="unsettled", detail=f"upload not aborted: {error}")
        return FileFate(key=upload[0], fate="aborted")

    with step("abort-uploads"):
        yield from in_parallel(abort, own(), settings.parallelism)


def drop_real_files(folder: JobFolder, job: JobRecord, settings: Settings) -> None:
    """Drop the real files that an ended job's attempts wrote: no task commits any more."""
    shutil.rmtree(staging_dir(job, settings), ignore_errors=True)
    drop_temporary(folder.store, job.job_id)


def clean_up(folder: JobFolder, job: JobRecord, settings: Settings) -> None:
    """Drop what an ended job left, but for its identity, markers, audits and report.

    The lease goes last: as long as an ended job has one, its clean-up is unfinished.
    """
    with step("clean-up"):
        drop_real_files(folder, job, settings)
        left = [
            failure
            for prefix in ("tasks/", "plan/", "attempts/")
            for page in folder.store.pages(folder.key(prefix))
            for failure in folder.store.delete_many([info.key for info in page])
        ]
        if not left:
            folder.store.delete(folder.key("lease.json"))
