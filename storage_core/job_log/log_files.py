"""Names of the files of a job's event log.

An appendable file has one writer, so each process that acts for a job has a file of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final, NamedTuple

from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.queries import FileStatus

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
