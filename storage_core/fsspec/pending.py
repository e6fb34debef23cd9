"""The magic directories that one file system instance writes: each task's is one attempt.

What was written is told from the attempt's own record, without a request. Source: Stocator.
"""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from storage_core.commit import Attempt, Job, PendingSet, attach_job
from storage_core.errors import ConflictError, InvalidInputError
from storage_core.fsspec.paths import BASE, MagicPath
from storage_core.fsspec.tree import FileTree, Info
from storage_core.ids import JobId, TaskId
from storage_core.settings import Settings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WRITE: Final = "wb"
EXCLUSIVE: Final = "xb"


class PendingTask:
    """The magic directory of one task, and the attempt that its files belong to."""

    def __init__(self, tasks: PendingTasks, root: MagicPath) -> None:
        self._tasks = tasks
        self._root = root
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._closed = False
        self.tree = self._empty_tree()

    @property
    def path(self) -> str:
        """The task's directory, as a path of the file system."""
        return self._root.text

    def begin(self) -> Attempt:
        """Return the attempt, begun when first asked for.

        Raises:
            ConflictError: The job is decided or has ended, or the task has committed, or may have.
            ObjectNotFoundError: There is no such job.
        """
        with self._lock:
            if self._closed:
                raise ConflictError(
                    f"{self.path}: the task has committed through this file system, or may have: it takes no "
                    "more files; if it is not known, commit_task again; write what follows as another task"
                )
            if self._attempt is None:
                job = self._tasks.job(self._root.destination, self._root.job_id)
                self._attempt = job.attempt(str(self._root.task_id))
            return self._attempt

    def open(self, path: MagicPath, mode: str) -> PendingOutput:
        """Open a file of the attempt for writing.

        Raises:
            FileExistsError: The mode is `xb`, and the file was written.
            InvalidInputError: The path cannot be, or was written already.
        """
        target = path.target
        if self.tree.is_file(path.text):
            if mode == EXCLUSIVE:
                raise FileExistsError(path.text)
            raise InvalidInputError(
                f"{path.text} was written already, and is not overwritten; use another name, or rm it first"
            )
        attempt = self.begin()
        return PendingOutput(self, attempt, path, attempt.open(target))

    def remove(self, path: MagicPath) -> None:
        """Drop a file that was written, or an empty directory.

        Raises:
            ConflictError: The task has committed.
            InvalidInputError: There are files in the directory.
        """
        if not self.tree.is_file(path.text):
            if self.tree.children(path.text):
                raise InvalidInputError(
                    f"{path.text}: nothing was removed, there are files in it; remove those first"
                )
        elif self._attempt is not None:
            self._attempt.drop(path.target)
        with self._lock:
            if path.text != self.tree.root:
                self.tree.remove(path.text)

    def make_directory(self, path: str) -> None:
        """Remember a directory below the task's."""
        with self._lock:
            self.tree.add_directory(path)

    def written(self, attempt: Attempt, path: str, size: int) -> None:
        """Record a file that an attempt has wholly written."""
        with self._lock:
            if attempt is self._attempt:
                self.tree.add_file(path, size, pending=True)

    def commit(self) -> PendingSet:
        """Commit the task; a second call returns the same.

        Raises:
            ConflictError: Nothing of the task was written through this file system, or the job is decided.
            FencedError: The job's driver was replaced.
            OutcomeUnknownError: It is not known whether it has committed; call again.
        """
        with self._lock:
            attempt = self._attempt
            self._closed = attempt is not None
        if attempt is None:
            raise ConflictError(
                f"{self.path}: this file system instance wrote nothing of the task, so there is nothing to "
                "commit; commit it by the instance that wrote it (fsspec keeps one for every thread)"
            )
        try:
            return attempt.commit()
        finally:
            self._forget_if_aborted(attempt)

    def abort(self) -> None:
        """Drop what was written, unless the task has committed, or may have.

        What is written next is another attempt.
        """
        attempt = self._attempt
        if attempt is not None:
            attempt.abort()
            self._forget_if_aborted(attempt)

    def _forget_if_aborted(self, attempt: Attempt) -> None:
        with self._lock:
            if attempt.aborted and attempt is self._attempt:
                self._attempt = None
                self._closed = False
                self.tree = self._empty_tree()

    def _empty_tree(self) -> FileTree:
        tree = FileTree(self.path)
        tree.add_directory(f"{self.path}/{BASE}")
        return tree


class PendingOutput(io.RawIOBase):
    """A file that is being written; closing it leaves it pending, an exception in its block drops it.

    `commit` and `discard` are what fsspec's transactions call.

    Attributes:
        path: Of the file, as it was opened.
    """

    def __init__(self, task: PendingTask, attempt: Attempt, path: MagicPath, file: BinaryIO) -> None:
        self.path = path
        self._task = task
        self._attempt = attempt
        self._file = file
        self._size = 0

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size

    def write(self, data: ReadableBuffer, /) -> int:
        """Take bytes; waits while the store is behind."""
        taken = self._file.write(data)
        self._size += taken
        return taken

    def close(self) -> None:
        """Seal the file; from here on it is pending."""
        if self.closed:
            return
        try:
            self._file.close()
        finally:
            super().close()
        self._task.written(self._attempt, self.path.text, self._size)

    def commit(self) -> None:
        """Commit the task that the file belongs to."""
        self.close()
        self._task.commit()

    def discard(self) -> None:
        """Abort the task that the file belongs to."""
        self._task.abort()
        super().close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or self.closed:
            self.close()
            return
        super().close()
        with suppress(ConflictError):  # the error of the block is the one to report
            self._attempt.drop(self.path.target)
        self._file.close()

    def __del__(self) -> None:
        """Leave a forgotten file to its attempt; RawIOBase would close, and so seal, half of it."""


class PendingTasks:
    """All magic directories that one file system instance has met."""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._jobs: dict[tuple[str, JobId], Job] = {}
        self._tasks: dict[tuple[str, JobId, TaskId], PendingTask] = {}

    def adopt(self, job: Job) -> None:
        """Write for a job that this process drives, instead of attaching to it by its id."""
        with self._lock:
            self._jobs[job.destination, job.job_id] = job

    def job(self, destination: str, job_id: JobId) -> Job:
        """Return a job by its ids; it is attached to once.

        Raises:
            ObjectNotFoundError: There is no such job.
        """
        with self._lock:
            if (destination, job_id) not in self._jobs:
                self._jobs[destination, job_id] = attach_job(destination, job_id, settings=self._settings)
            return self._jobs[destination, job_id]

    def task(self, path: MagicPath) -> PendingTask:
        """Return the task that a path lies in.

        Raises:
            InvalidInputError: The path names no task.
        """
        if path.task_id is None:
            raise InvalidInputError(f"{path.text} names a job, not a task; add /<task>/{BASE}/<file>")
        key = (path.destination, path.job_id, path.task_id)
        with self._lock:
            if key not in self._tasks:
                self._tasks[key] = PendingTask(self, MagicPath(*key))
            return self._tasks[key]

    def info(self, path: MagicPath) -> Info:
        """Tell about a path from what was written; no request.

        Raises:
            FileNotFoundError: Nothing was written there by this file system instance.
        """
        found = self._tree(path).info(path.text)
        if found is None:
            raise FileNotFoundError(f"{path.text}: not written by this file system instance")
        return found

    def children(self, path: MagicPath) -> list[Info]:
        """List a directory from what was written; no request.

        Raises:
            FileNotFoundError: Nothing was written there by this file system instance.
        """
        self.info(path)
        return self._tree(path).children(path.text)

    def _tree(self, path: MagicPath) -> FileTree:
        if path.task_id is not None:
            return self.task(path).tree
        tree = FileTree(path.text)
        with self._lock:
            for destination, job_id, task_id in self._tasks:
                if (destination, job_id) == (path.destination, path.job_id):
                    tree.add_directory(f"{path.text}/{task_id}")
        return tree
