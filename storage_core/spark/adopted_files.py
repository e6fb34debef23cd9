"""Make the pending files that Spark's own writer left files of a job's tasks, and commit these.

Spark lists them in a file, a line for each: uploads that stay open, or files in a directory, which are linked
to the destination or uploaded. Lines are read in pages, so memory does not depend on their number.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import count, islice
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Final, NamedTuple, Self

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.staged_files import make_attempt_dir, make_stage_dir
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.commit.uploads.parquet_footer import statistics_in_tail
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import AttemptId, TaskId, Token, new_attempt_id, with_short_id
from lockgate.storage_core.stores import Part, PendingUpload
from lockgate.storage_core.stores.file_tree import FileTree

FILES_OF_A_TASK: Final = 200
"""Files in one task of the job, which keeps its pending set small."""
TASKS_AT_ONCE: Final = 8
LOOK_S: Final = 0.1


class AdoptedFiles:
    """Commits tasks with the pending files of one run of Spark's writer, while it runs.

    The input digest of an attempt is its id: after a crash, a commit that does not name these attempts
    refuses them, as they may not be all.

    As a context manager it begins before the list is complete, and stops with its block. Otherwise `commit`
    reads a list that is.
    """

    def __init__(
        self,
        job: Job,
        spool: Path,
        part_bytes: int,
        directory: Path | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Start without a file.

        Args:
            job: The job, with the job attempt of this run.
            spool: List of the files, which may not exist yet; its first line is the token of the uploads.
            part_bytes: Size of all parts of an upload but the last one.
            directory: Directory with the files; None: they are uploads that stay open.
            progress: Called with the number of files so far.
        """
        self._job = job
        self._spool = spool
        self._part_bytes = part_bytes
        self._directory = directory
        self._moves = directory is not None and not isinstance(job.store, FileTree)
        self._progress = progress
        self._token = Token("")
        self._written = Event()
        self._is_wanted = True
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lockgate-adopt")
        self._found: Future[dict[TaskId, AttemptId]] | None = None

    def commit(self) -> dict[TaskId, AttemptId]:
        """Commit the tasks of all files of the finished list; return the attempts to commit the job with.

        Raises:
            ConflictError: The job is decided.
            InvalidInputError: A path is not valid in every store.
            OutcomeUnknownError: It is unknown whether a task is committed.
        """
        self._written.set()
        return self._commit_pages() if self._found is None else self._found.result()

    def __enter__(self) -> Self:
        self._found = self._pool.submit(copy_context().run, self._commit_pages)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_wanted = error is None
        self._written.set()
        self._pool.shutdown(cancel_futures=True)

    def _commit_pages(self) -> dict[TaskId, AttemptId]:
        found: dict[TaskId, AttemptId] = {}
        files = 0
        for attempt in in_parallel(self._commit_page, self._pages(), TASKS_AT_ONCE):
            found[attempt.task_id] = attempt.attempt_id
            files += len(attempt.files)
            self._progress("adopt", files, 0)
        return found

    def _pages(self) -> Iterator[tuple[int, list[str]]]:
        lines = self._lines()
        self._token = Token(next(lines, ""))
        for number in count():
            page, size = list[str](), 0
            for line in islice(lines, FILES_OF_A_TASK):
                page.append(line)
                size += int(_File(*line.split("\t")).size) if self._moves else 0
                if size >= self._part_bytes:
                    break  # its uploads take their time: they begin now, beside those of other pages
            if not page or not self._is_wanted:
                return
            yield number, page

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the list until it is written."""
        while not self._spool.exists():
            if self._written.wait(LOOK_S) and not self._spool.exists():
                return
        with self._spool.open("rb") as spool:
            line = b""
            while True:
                is_last = self._written.is_set()
                line += spool.readline()
                if line.endswith(b"\n"):
                    yield line[:-1].decode()
                    line = b""
                elif is_last:
                    return
                else:
                    self._written.wait(LOOK_S)

    def _commit_page(self, page: tuple[int, Sequence[str]]) -> Attempt:
        number, lines = page
        attempt_id = new_attempt_id()
        with self._job.attempt(f"spark-{number:05d}", attempt_id, input_digest=attempt_id) as attempt:
            for line in lines:
                file = _File(*line.split("\t"))
                with step("task-write"):
                    if self._directory is None:
                        self._adopt_upload(attempt, file)
                    else:
                        local, size = self._directory / file.path, int(file.size)
                        attempt.add_file(local, file.path, expected_size=size, adopt=True, with_sha256=False)
        return attempt

    def _adopt_upload(self, attempt: Attempt, file: _File) -> None:
        tags, size = file.etags.split(","), int(file.size)
        last = size - self._part_bytes * (len(tags) - 1)
        parts = [
            Part(number=number, size=self._part_bytes if number < len(tags) else last, etag=etag)
            for number, etag in enumerate(tags, start=1)
        ]
        upload = PendingUpload(
            key=with_short_id(file.path, self._job.short_id),
            upload_id=file.upload_id,
            token=self._token,
            size=size,
            parts=tuple(parts),
        )
        tail = base64.b64decode(file.footer)
        tail += len(tail).to_bytes(4, "little") + b"PAR1" if tail else b""
        rows, statistics = statistics_in_tail(tail, file.path) or (None, {})
        attempt.add_upload(file.path, upload, rows=rows, statistics=statistics)


class _File(NamedTuple):
    """A line of the list.

    Attributes:
        path: Path below the destination, without the job's short id.
        size: Size in bytes.
        upload_id: On S3, the upload's id.
        etags: On S3, the parts' ETags with commas between them.
        footer: On S3, the reduced footer of a Parquet file in base64; empty if it was not read.
    """

    path: str
    size: str
    upload_id: str = ""
    etags: str = ""
    footer: str = ""


def new_directory(job: Job) -> Path:
    """Return a new directory for Spark's files, which goes with the job.

    It is hidden in a destination on a file system, unless the job names a staging directory.

    Raises:
        InvalidInputError: It cannot be created.
    """
    if job.spec.staging is None and isinstance(job.store, FileTree):
        task, attempt = TaskId("spark"), new_attempt_id()
        return make_attempt_dir(job.store, job.job_id, job.job_attempt, task, attempt)
    new = Path(job.staging_dir, job.job_attempt).absolute()
    make_stage_dir(new)
    return new
