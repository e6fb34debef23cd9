"""Magic directories written by one file system instance; each task's directory is one attempt.

They are listed from the attempt's record, without a request. Source: Stocator.
"""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.open_or_attach import attach_job
from lockgate.storage_core.commit.records.pending_set import PendingSet
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.fsspec.paths import BASE, DirectoryTree, Info, MagicPath
from lockgate.storage_core.ids import JobId, TaskId
from lockgate.storage_core.settings import Settings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WRITE: Final = "wb"
EXCLUSIVE: Final = "xb"


class PendingTask:
    """The magic directory of one task, and its attempt."""

    def __init__(self, tasks: PendingTasks, root: MagicPath) -> None:
        self._tasks = tasks
        self._root = root
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._closed = False
        self._written_to = False
        self._try_number = 0
        self._outputs: set[PendingOutput] = set()
        self.tree = self._empty_tree()

    @property
    def path(self) -> str:
        """Path of the task's directory."""
        return self._root.text

    @property
    def under_way(self) -> bool:
        """Whether an attempt has begun, and has neither committed nor been aborted."""
        return self._attempt is not None and not self._closed

    def begin(self, try_number: int = 0) -> Attempt:
        """Return the attempt; the first call begins it.

        Args:
            try_number: Number of the try, as for `Job.attempt`; also of attempts that are begun later.

        Raises:
            ConflictError: The job is decided or has ended, or the task has committed or may have committed.
            ObjectNotFoundError: There is no such job.
        """
        with self._lock:
            if self._closed:
                raise ConflictError(
                    f"{self.path}: the task has committed through this file system, or may have committed, "
                    "so it takes no more files; if the outcome is unknown, call commit_task again; write "
                    "further files as another task"
                )
            if self._attempt is None:
                job = self._tasks.job(self._root.destination, self._root.job_id)
                self._try_number = max(self._try_number, try_number)
                self._attempt = job.attempt(str(self._root.task_id), try_number=self._try_number)
            return self._attempt

    def open(self, path: MagicPath, mode: str) -> PendingOutput:
        """Open a file of the attempt for writing.

        Raises:
            FileExistsError: The mode is `xb`, and the file was already written.
            InvalidInputError: The path is invalid, or was already written.
        """
        target = path.target
        if self.tree.is_file(path.text):
            if mode == EXCLUSIVE:
                raise FileExistsError(path.text)
            raise InvalidInputError(
                f"{path.text} was written already, and is not overwritten; use another name, or rm it first"
            )
        attempt = self.begin()
        output = PendingOutput(self, attempt, path, attempt.open(target))
        with self._lock:
            self._written_to = True
            self._outputs.add(output)
        return output

    def remove(self, path: MagicPath) -> None:
        """Discard a written file, or remove an empty directory.

        Raises:
            ConflictError: The task has committed.
            InvalidInputError: The directory is not empty.
        """
        if not self.tree.is_file(path.text):
            if self.tree.children(path.text):
                raise InvalidInputError(
                    f"{path.text}: nothing was removed; the directory is not empty; remove its files first"
                )
        elif self._attempt is not None:
            self._attempt.drop(path.target)
        with self._lock:
            if path.text != self.tree.root:
                self.tree.remove(path.text)

    def make_directory(self, path: str) -> None:
        """Record a directory below the task's directory."""
        with self._lock:
            self.tree.add_directory(path)

    def written(self, attempt: Attempt, path: str, size: int) -> None:
        """Record a completely written file."""
        with self._lock:
            if attempt is self._attempt:
                self.tree.add_file(path, size, pending=True)

    def closed(self, output: PendingOutput) -> None:
        """Record that a file was closed."""
        with self._lock:
            self._outputs.discard(output)

    def commit(self, *, allow_empty: bool = False) -> PendingSet:
        """Commit the task; see `LockgateFileSystem.commit_task`."""
        if not (allow_empty or self._closed or self._written_to):
            raise ConflictError(
                f"{self.path}: this file system instance wrote nothing of the task; nothing was committed; "
                "commit it by the instance that wrote it (every LockgateFileSystem(), and every URL that a "
                "library opens by itself, is another); a task without data commits with allow_empty=True"
            )
        attempt = self._attempt or self.begin()
        with self._lock:
            self._closed = True
        try:
            return attempt.commit()
        finally:
            self._forget_if_aborted(attempt)

    def abort(self) -> None:
        """Discard what was written, unless the task has committed or may have committed.

        A later write begins another attempt.
        """
        attempt = self._attempt
        if attempt is not None:
            attempt.abort()
            self._forget_if_aborted(attempt)

    def _open_outputs(self) -> list[PendingOutput]:
        with self._lock:
            return list(self._outputs)

    def _forget_if_aborted(self, attempt: Attempt) -> None:
        if attempt.aborted and attempt is self._attempt:
            for output in self._open_outputs():
                output.outermost.forget()
        with self._lock:
            if attempt.aborted and attempt is self._attempt:
                self._attempt = None
                self._closed = False
                self._written_to = False
                self.tree = self._empty_tree()

    def _empty_tree(self) -> DirectoryTree:
        tree = DirectoryTree(self.path)
        tree.add_directory(f"{self.path}/{BASE}")
        return tree


class PendingOutput(io.RawIOBase):
    """A file being written. Closing it makes it pending; an exception in its block discards it.

    fsspec's transactions call `commit` and `discard`.

    Attributes:
        path: Path of the file.
        outermost: Object that the caller writes to: this, or text or compression over it.
    """

    def __init__(self, task: PendingTask, attempt: Attempt, path: MagicPath, file: BinaryIO) -> None:
        self.path = path
        self.outermost: Any = self
        self._task = task
        self._attempt = attempt
        self._file = file
        self._size = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes; blocks while the store is slower."""
        taken = self._file.write(data)
        self._size += taken
        return taken

    def close(self) -> None:
        """Close the file and make it pending."""
        if self.closed:
            return
        try:
            self._file.close()
        finally:
            self.forget()
        self._task.written(self._attempt, self.path.text, self._size)

    def drop(self) -> None:
        """Close the file and discard it, unless it is already closed."""
        if self.closed:
            return
        self.outermost.forget()
        with suppress(ConflictError):  # the earlier error is the one to report
            self._attempt.drop(self.path.target)
        self._file.close()

    def forget(self) -> None:
        """Close the file without making it pending or discarding it."""
        super().close()
        self._task.closed(self)

    def commit(self) -> None:
        """Commit the file's task."""
        self._task.commit()

    def discard(self) -> None:
        """Abort the file's task."""
        self._task.abort()
        self.outermost.forget()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.drop()
        self.close()

    def __del__(self) -> None:
        """Do nothing: RawIOBase would close an unreferenced file, and so make half of it pending."""


class PendingTasks:
    """All magic directories used by one file system instance."""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._jobs: dict[tuple[str, JobId], Job] = {}
        self._tasks: dict[tuple[str, JobId, TaskId], PendingTask] = {}

    def adopt(self, job: Job) -> None:
        """Use a job that this process drives, instead of attaching to it by id."""
        with self._lock:
            self._jobs[job.destination, job.job_id] = job

    def job(self, destination: str, job_id: JobId) -> Job:
        """Return a job by its ids; the first call attaches to it.

        Raises:
            ObjectNotFoundError: There is no such job.
        """
        with self._lock:
            if (destination, job_id) not in self._jobs:
                self._jobs[destination, job_id] = attach_job(destination, job_id, settings=self._settings)
            return self._jobs[destination, job_id]

    def task(self, path: MagicPath) -> PendingTask:
        """Return the task of a path.

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

    def check_none_under_way(self) -> None:
        """Refuse to copy this instance during a task: nothing would commit what the copy writes.

        Raises:
            ConflictError: A task is under way.
        """
        with self._lock:
            under_way = [task.path for task in self._tasks.values() if task.under_way]
        if under_way:
            raise ConflictError(
                f"this file system instance cannot be copied or pickled while it writes {under_way[0]}: "
                "what a copy writes would not belong to this task's commit; give the other process a "
                "separate task and LockgateFileSystem()"
            )

    def info(self, path: MagicPath) -> Info:
        """Return the description of a path from what was written, without a request.

        Raises:
            FileNotFoundError: This file system instance wrote nothing there.
        """
        found = self._tree(path).info(path.text)
        if found is None:
            raise FileNotFoundError(f"{path.text}: not written by this file system instance")
        return found

    def children(self, path: MagicPath) -> list[Info]:
        """List a directory from what was written, without a request.

        Raises:
            FileNotFoundError: This file system instance wrote nothing there.
        """
        self.info(path)
        return self._tree(path).children(path.text)

    def _tree(self, path: MagicPath) -> DirectoryTree:
        if path.task_id is not None:
            return self.task(path).tree
        tree = DirectoryTree(path.text)
        with self._lock:
            for destination, job_id, task_id in self._tasks:
                if (destination, job_id) == (path.destination, path.job_id):
                    tree.add_directory(f"{path.text}/{task_id}")
        return tree
