"""Directories of a job's attempts: a staging directory outside the destination, `_temporary` inside it.

`_temporary` holds real files inside a destination on a file system, hidden from readers:

    DEST/_temporary/<job id>/<job attempt>/<task>/<attempt>/<path>

The job id is the first level, so that a job's files can be removed without knowing its attempts.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.commit.records.job import JobRecord
from lockgate.storage_core.errors import InvalidInputError, UnsupportedStoreError
from lockgate.storage_core.ids import AttemptId, JobAttemptId, JobId, TaskId, is_job_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree
from lockgate.storage_core.stores.os_errors import translated

_TRIES: Final = 100
"""Tries to create a directory while other jobs that end remove the empty `_temporary`."""


def staging_dir(job: JobRecord, settings: Settings) -> Path:
    """Return a job's staging directory, which is deleted when the job ends.

    `spec.staging` must be on a disk that workers see; the default, `LOCKGATE_HOME/staging`, serves one
    machine.
    """
    base = Path(job.spec.staging) if job.spec.staging is not None else settings.home_dir / "staging"
    # Jobs of one name at two destinations may have the same short id; their tokens differ.
    return base / f"lockgate-{job.short_id}-{hashlib.sha256(job.token.encode()).hexdigest()[:10]}"


def make_attempt_dir(
    store: Store, job: JobId, job_attempt: JobAttemptId, task: TaskId, attempt: AttemptId
) -> Path:
    """Create an attempt's directory in `_temporary` with mode 0700, and return it.

    Raises:
        UnsupportedStoreError: The destination is not on a file system.
        InvalidInputError: `_temporary` is a symbolic link, which could leave the destination.
    """
    top = _top(store)
    if top is None:
        raise UnsupportedStoreError(f"{store.url}: no file system; use the committer 'magic' or 'staging'")
    if top.is_symlink():
        raise InvalidInputError(f"{top} is a symbolic link; nothing was written; remove it")
    made = top / job / job_attempt / task / attempt
    with translated("make", str(made), changes=True):
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):
                made.mkdir(parents=True, exist_ok=True, mode=0o700)
                return made
        made.mkdir(parents=True, exist_ok=True, mode=0o700)
    return made


def drop_temporary(store: Store, job: JobId) -> None:
    """Remove a job's files in `_temporary`; files that cannot be removed stay hidden."""
    top = _top(store)
    if top is None or top.is_symlink():
        return
    shutil.rmtree(top / job, ignore_errors=True)
    with suppress(OSError):  # it is absent, or has another job's files
        top.rmdir()


def jobs_with_temporary(store: Store) -> frozenset[JobId]:
    """Return the jobs that have files in `_temporary`."""
    top = _top(store)
    if top is None or top.is_symlink() or not top.is_dir():
        return frozenset()
    return frozenset(JobId(folder.name) for folder in top.iterdir() if is_job_id(folder.name))


def _top(store: Store) -> Path | None:
    return Path(store.url.removeprefix("file://")) / "_temporary" if isinstance(store, FileTree) else None
