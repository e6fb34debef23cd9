"""Logs that their processes or their jobs have left: closed, or deleted with the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.errors import LeaseHeldError, ObjectNotFoundError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.files.namespace.queries import FileStatus
from lockgate.storage_core.job_log.log_files import (
    LogOwner,
    files_of_job,
    log_path,
    log_prefix,
    owner_of,
    pages,
)
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings

YOUNG_S: Final = 3600.0
"""A log of a job that the journal does not know is kept for this long: a rescan may be under way."""


def recover_open_files(files: Files, job_id: str, short_id: str) -> bool:
    """Close the files of a job's log whose leases have lapsed; return whether others are open."""
    is_open = False
    for status in list(files_of_job(files, log_prefix(job_id, short_id))):
        if not status.is_open:
            continue
        if files.recovery.lapses_in_s(status.inode):
            is_open = True
            continue
        try:
            files.recovery.recover(status.inode)
        except LeaseHeldError:
            is_open = True
    return is_open


def delete_old_logs(
    settings: Settings, *, dry_run: bool = False, note: Callable[[str], None] = lambda _: None
) -> int:
    """Delete the logs of jobs that the journal has forgotten, or that ended `tombstone_s` ago.

    One entry a file; `Files.remove_deleted` frees their space. The next run continues one that ends early.

    Args:
        settings: See `open_files`.
        dry_run: Change nothing.
        note: Receives a line for each file.

    Returns:
        The number of files.

    Raises:
        JournalUnavailableError: The journal cannot be reached.
    """
    journal, count = configured_journal(settings), 0
    if journal is None:
        return 0
    with open_files(settings, writes=False) as files:
        for path in _delete(files, journal, keep_s=settings.tombstone_s, dry_run=dry_run):
            count += 1
            note(
                f"{path}: {'would be deleted' if dry_run else 'deleted'}, its job is forgotten or long ended"
            )
    return count


def _delete(files: Files, journal: Journal, *, keep_s: float, dry_run: bool) -> Iterator[str]:
    for page in pages(files):
        with journal.reading() as reading:
            now_s = reading.now_s()
            ids = sorted({owner.job_id for status in page if (owner := owner_of(status.name))})
            rows = reading.within(Job, ("job_id",), [(job_id,) for job_id in ids])
            jobs = {LogOwner(row.job_id, row.short_id): row for row in rows}
        for status in page:
            if _is_forgotten(status, jobs, now_s, keep_s):
                path = log_path(status.name)
                if not dry_run:
                    try:
                        files.delete(path)
                    except ObjectNotFoundError:
                        continue  # another run has deleted it
                yield path


def _is_forgotten(status: FileStatus, jobs: Mapping[LogOwner, Job], now_s: float, keep_s: float) -> bool:
    owner = owner_of(status.name)
    if owner is None or status.is_directory:
        return False  # a user's
    job = jobs.get(owner)
    if job is None:
        return now_s - status.changed_s > YOUNG_S
    return job.ended_s is not None and now_s - job.ended_s > keep_s
