"""Files of the events of jobs: their names, and the deletion of those of old and forgotten jobs.

An appendable file has one writer, so each process that acts for a job has a file of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Final, NamedTuple

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import read
from lockgate.storage_core.commit.records.job_record import StoreRecord
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.queries import FileStatus
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.volume_map import VOLUME_ID, open_volume
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store

JOB_LOGS: Final = "/jobs"
"""Directory of the logs."""


def log_prefix(job_id: str, short_id: str) -> str:
    """Return the first characters of the names of a job's files, which no other job's have."""
    return f"{job_id}.{short_id}."


def new_log_name(job_id: str, short_id: str, role: str) -> str:
    """Return the name of a new file of a job's log."""
    return f"{log_prefix(job_id, short_id)}{role}-{secrets.token_hex(4)}.log"


def log_path(name: str) -> str:
    """Return the path of a file of a log."""
    return f"{JOB_LOGS}/{name}"


def make_log_volume(url: str, settings: Settings) -> VolumeId | None:
    """Make the volume of one job's log below its destination, if there is none, and return its id: the URL.

    The records of the job are in the same store, which was probed when the job was set up. None if it can
    have no volume: the journal decides who creates a name there.
    """
    destination, _, folder = url.partition(f"/{layout.JOBS}")
    if url.startswith("s3://"):
        store = open_store(destination, settings)
        if read(store, StoreRecord, layout.PROBED).arbiter:
            return None
        with suppress(AlreadyExistsError, OutcomeUnknownError):
            store.create(f"{layout.JOBS}{folder}/{VOLUME_ID}", new_token()[:16].encode())
    else:
        made = Path(url.removeprefix("file://"))
        with suppress(FileExistsError):
            made.mkdir()  # not the job's folder, which may be deleted
            made.chmod(S_IMODE(made.parent.stat().st_mode))  # for all users who write the job's records
        open_volume(url, settings).close()
    return VolumeId(url)


class LogOwner(NamedTuple):
    """The job of a file of a log."""

    job_id: str
    short_id: str


def owner_of(name: str) -> LogOwner | None:
    """Return the job of a file by its name, None if it is no file of a log."""
    job_id, *parts = name.rsplit(".", 3)
    return LogOwner(job_id, parts[0]) if len(parts) == 3 and parts[2] == "log" else None


def pages(files: Files, after: str = "") -> Iterator[list[FileStatus]]:
    """Yield the files of all logs in the order of their names, a page at a time."""
    try:
        while page := files.list(JOB_LOGS, after=after):
            yield page
            after = page[-1].name
    except ObjectNotFoundError:
        return  # no job has a log yet


def files_of_job(files: Files, prefix: str) -> Iterator[FileStatus]:
    """Yield the files of a job's log, given the result of `log_prefix`."""
    for page in pages(files, prefix):
        for status in page:
            if not status.name.startswith(prefix):
                return
            yield status


YOUNG_S: Final = 3600.0
"""A log of a job that the journal does not know is kept for this long: a rescan may be under way."""


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
    with open_files(settings) as files:
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
