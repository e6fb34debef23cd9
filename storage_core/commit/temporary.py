"""`_temporary`: where attempts keep real files inside a destination on a file system, hidden from readers.

DEST/_temporary/<job id>/<job attempt>/<task>/<attempt>/<path>

The job's id comes first, so that all that a job left there can be removed without knowing its attempts.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import InvalidInputError, UnsupportedStoreError
from lockgate.storage_core.ids import AttemptId, JobAttemptId, JobId, TaskId, is_job_id
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.file_tree import FileTree
from lockgate.storage_core.stores.os_errors import translated

_TRIES: Final = 100
"""How often a directory is made anew when other jobs that end keep removing the empty `_temporary`."""


def make_attempt_dir(
    store: Store, job: JobId, job_attempt: JobAttemptId, task: TaskId, attempt: AttemptId
) -> Path:
    """Make an attempt's own directory, mode 0700, and return it.

    Raises:
        UnsupportedStoreError: The destination is not on a file system.
        InvalidInputError: `_temporary` is a link, which could lead out of the destination.
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
    """Remove all that a job's attempts left there; what cannot be removed now stays hidden."""
    top = _top(store)
    if top is None or top.is_symlink():
        return
    shutil.rmtree(top / job, ignore_errors=True)
    with suppress(OSError):  # another job's files are there, or it has none
        top.rmdir()


def jobs_with_temporary(store: Store) -> frozenset[JobId]:
    """Return the jobs whose attempts have left something there."""
    top = _top(store)
    if top is None or top.is_symlink() or not top.is_dir():
        return frozenset()
    return frozenset(JobId(folder.name) for folder in top.iterdir() if is_job_id(folder.name))


def _top(store: Store) -> Path | None:
    return Path(store.url.removeprefix("file://")) / "_temporary" if isinstance(store, FileTree) else None
