"""Names of the files of a job's event log.

An appendable file has one writer, so each process that acts for a job has a file of its own.
"""

from __future__ import annotations

import secrets
from typing import Final

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
