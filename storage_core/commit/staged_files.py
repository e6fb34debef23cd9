"""Files that attempts stage on disk before they become uploads: directories of attempts, listings, tasks.

An attempt's files lie in a staging directory outside the destination, or in `_temporary` inside a destination
on a file system, hidden from readers:

    DEST/_temporary/<job id>/<job attempt>/<task>/<attempt>/<path>

The job id is the first level, so that a job's files can be removed without knowing its attempts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask, StagedFile
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.errors import ConflictError, InvalidInputError, UnsupportedStoreError
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


def make_stage_dir(staging_dir: Path) -> None:
    """Create a directory that must not exist, so that stages of two runs are never mixed.

    Raises:
        ConflictError: It exists.
        InvalidInputError: It cannot be created.
    """
    try:
        staging_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staging_dir.mkdir(mode=0o700)
    except FileExistsError:
        raise ConflictError(
            f"staging directory {staging_dir} already exists; every run of Spark needs a new one; "
            "nothing was written"
        ) from None
    except OSError as error:
        raise InvalidInputError(
            f"staging directory {staging_dir} cannot be created: {error.strerror}"
        ) from None


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


TARGET_BYTES: Final = 256 * 1024 * 1024
MAX_FILES: Final = 200


def list_staged(staging_dir: str | Path, *, marker: str | None = "_SUCCESS") -> list[StagedFile]:
    """Return every visible file of a finished stage with its size, sorted by path.

    Args:
        staging_dir: Directory on a disk that this process sees.
        marker: File that the writer creates when it has finished (Spark: `_SUCCESS`); None to skip the check.

    Raises:
        InvalidInputError: The directory is missing, or has something that is neither file nor directory.
        ConflictError: The marker is missing: the writer has not finished, or died.
    """
    root = Path(staging_dir)
    if not root.is_dir():
        raise InvalidInputError(
            f"staging directory {root} does not exist; it must be on a disk that workers see"
        )
    if marker is not None and not (root / marker).is_file():
        raise ConflictError(
            f"staging directory {root} has no {marker}: its writer has not finished, or died; nothing of it "
            "was taken; write the stage again into a fresh directory"
        )
    return sorted(_files(root), key=lambda file: file.path)


def _files(root: Path) -> Iterator[StagedFile]:
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not is_hidden(name)]
        for name in [*names, *(link for link in folders if Path(folder, link).is_symlink())]:
            if is_hidden(name):
                continue
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                raise InvalidInputError(
                    f"staged {path} is not a regular file; links and devices are not committed"
                )
            found = path.stat()
            yield StagedFile((here / name).as_posix(), found.st_size, found.st_mtime_ns)


def group_into_tasks(
    files: Iterable[StagedFile], *, target_bytes: int = TARGET_BYTES, max_files: int = MAX_FILES
) -> tuple[ExpectedTask, ...]:
    """Group staged files into tasks; the same files always give the same tasks.

    Args:
        files: Listing of the staged files, in any order.
        target_bytes: Maximum bytes in a task; a larger file gets its own task.
        max_files: Maximum number of files in a task.

    Raises:
        InvalidInputError: A limit is below 1.
    """
    if target_bytes < 1 or max_files < 1:
        raise InvalidInputError(
            f"group_into_tasks: target_bytes={target_bytes} and max_files={max_files} must be at least 1"
        )
    groups: list[list[StagedFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.path):
        if not groups or len(groups[-1]) >= max_files or size + file.size > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return tuple(
        ExpectedTask(task_id=TaskId(f"staged-{number:05d}"), input_digest=_digest(group), files=tuple(group))
        for number, group in enumerate(groups)
    )


def _digest(files: Iterable[StagedFile]) -> str:
    # Another job attempt's task with this digest is taken for this one, so names and sizes are not enough.
    lines = "".join(f"{file.size} {file.modified_ns} {file.path}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
