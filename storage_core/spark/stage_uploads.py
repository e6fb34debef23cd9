"""Upload the files of a stage while Spark still writes it.

Spark's committer renames the folder of a task that commits to `_temporary/<number>/task_<id>`: from then on
its files are complete, and keep their inode until the stage ends. A thread looks for such folders and uploads
their files. The listing of the finished stage decides: an upload of a file that another try replaced, or that
the listing does not have, is dropped; a file that was not seen is uploaded at the end. If Spark uses another
committer, that is all of them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.expected_tasks import StagedFile
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import AttemptId, TaskId

FILES_AT_ONCE: Final = 8
"""Concurrent uploads; each holds at most three parts in memory."""
FILES_OF_A_TASK: Final = 200
"""Files in one task of the job, which keeps its pending set small."""
LOOK_S: Final = 0.2

logger = logging.getLogger(__name__)

_Identity = tuple[int, int, int]
"""Inode, size and time of a file: a rename keeps them, another try of the task has others."""


@dataclass(frozen=True)
class _Upload:
    """A file of the stage that an attempt takes."""

    attempt: Attempt
    identity: _Identity
    done: Future[None]


class StageUploads:
    """Uploads of one stage, in the process of Spark's driver.

    As a context manager it drops all uploads if its block raises.
    """

    def __init__(self, job: Job, staging: Path) -> None:
        self._job = job
        self._staging = staging
        self._attempts: list[Attempt] = []
        self._taken = 0
        self._uploads: dict[str, _Upload] = {}
        self._pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lockgate-stage")
        self._ended = threading.Event()
        self._watcher = threading.Thread(
            target=copy_context().run, args=(self._watch,), name="lockgate-stage-watcher", daemon=True
        )

    def commit(
        self, files: Sequence[StagedFile], progress: Progress = no_progress
    ) -> dict[TaskId, AttemptId]:
        """Upload what is missing of the finished stage, drop what is not in it, and commit all tasks.

        Args:
            files: Listing of the finished stage.
            progress: Called with the number of uploaded files.

        Returns:
            The attempts to commit the job with, by task.

        Raises:
            ConflictError: A file has another size than listed; or the job is decided.
            StoreUnavailableError: The store is unavailable; the block drops the uploads.
            OutcomeUnknownError: It is unknown whether a task is committed.
        """
        self._stop_watching()
        uploaded = {path for path, upload in self._uploads.items() if self._is_of_the_stage(path, upload)}
        listed = {file.path for file in files}
        for path in self._uploads.keys() - (uploaded & listed):
            self._uploads[path].attempt.drop(path)
        missing = [(self._next_attempt(), file) for file in files if file.path not in uploaded]
        logger.info("stage: %d of %d files were uploaded beside Spark", len(files) - len(missing), len(files))
        for count, _ in enumerate(in_parallel(self._add_listed, missing, FILES_AT_ONCE), start=1):
            progress("upload", len(files) - len(missing) + count, len(files))
        with_files = [attempt for attempt in self._attempts if attempt.files]
        for _ in in_parallel(Attempt.commit, with_files, FILES_AT_ONCE):
            pass
        return {attempt.task_id: attempt.attempt_id for attempt in with_files}

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_watching(cancel=error is not None)
        for attempt in self._attempts:
            attempt.abort()  # without effect on those that have committed, or may have

    def _stop_watching(self, *, cancel: bool = False) -> None:
        self._ended.set()
        self._watcher.join()
        self._pool.shutdown(cancel_futures=cancel)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(OSError):  # Spark moved a folder; the next look sees the rest
                self._look()

    def _look(self) -> None:
        for folder in self._staging.glob("_temporary/*/task_*"):
            for local in _files(folder):
                path = local.relative_to(folder).as_posix()
                if path not in self._uploads:
                    with suppress(OSError, LockgateError):  # `commit` uploads what is missing
                        self._begin(local, path)

    def _begin(self, local: Path, path: str) -> None:
        identity = _identity(local)
        attempt = self._next_attempt()
        done = self._pool.submit(copy_context().run, _add, attempt, local, path, identity[1])
        self._uploads[path] = _Upload(attempt, identity, done)

    def _is_of_the_stage(self, path: str, upload: _Upload) -> bool:
        """Return whether the upload is complete, and of the file that the finished stage has."""
        error = upload.done.exception()
        if error is not None:
            logger.info("stage: %s is uploaded again: %s", path, error)
            return False
        with suppress(OSError):
            return _identity(self._staging / path) == upload.identity
        return False

    def _add_listed(self, missing: tuple[Attempt, StagedFile]) -> None:
        attempt, file = missing
        _add(attempt, self._staging / file.path, file.path, file.size)

    def _next_attempt(self) -> Attempt:
        """Return the attempt for the next file; called by the watcher, and by `commit` after its end."""
        if self._taken % FILES_OF_A_TASK == 0:
            task = f"staged-{len(self._attempts):05d}"
            self._attempts.append(self._job.attempt(task, input_digest=""))
        self._taken += 1
        return self._attempts[-1]


def _add(attempt: Attempt, local: Path, path: str, size: int) -> None:
    with step("task-write"):
        # No audit reads this stage: it is gone when the job ends.
        attempt.add_file(local, path, expected_size=size, adopt=True, with_sha256=False)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the visible files of a task's folder, which Spark may be moving."""
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        yield from (Path(here, name) for name in names if not is_hidden(name))


def _identity(file: Path) -> _Identity:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
