"""Make the pending files that Spark's own writer left files of a job's tasks, and commit these.

Spark lists them in a file, a line for each. Lines are read in pages, so memory does not depend on their
number.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.staged_files import make_attempt_dir
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


@dataclass(frozen=True)
class AdoptedFiles:
    """Pending files of one run of Spark's writer.

    Attributes:
        job: The job, with the job attempt of this run.
        spool: List of the files.
        token: Token of the uploads.
        part_bytes: Size of all parts of an upload but the last one.
        directory: On a file system, the hidden directory with the files.
    """

    job: Job
    spool: Path
    token: Token
    part_bytes: int
    directory: Path | None = None

    def commit(self, progress: Progress = no_progress) -> dict[TaskId, AttemptId]:
        """Commit a task for each page of files, and return the attempts to commit the job with.

        The input digest of an attempt is its id: after a crash, a commit that does not name these attempts
        refuses them, as they may not be all.

        Args:
            progress: Called with the number of files.

        Raises:
            ConflictError: The job is decided.
            InvalidInputError: A path is not valid in every store.
            OutcomeUnknownError: It is unknown whether a task is committed.
        """
        found: dict[TaskId, AttemptId] = {}
        files = 0
        for attempt in in_parallel(self._commit_page, self._pages(), TASKS_AT_ONCE):
            found[attempt.task_id] = attempt.attempt_id
            files += len(attempt.files)
            progress("adopt", files, 0)
        return found

    def _pages(self) -> Iterator[tuple[int, list[str]]]:
        with self.spool.open(encoding="utf-8", newline="\n") as lines:
            number = 0
            while page := list(islice(lines, FILES_OF_A_TASK)):
                yield number, page
                number += 1

    def _commit_page(self, page: tuple[int, Sequence[str]]) -> Attempt:
        number, lines = page
        attempt_id = new_attempt_id()
        with self.job.attempt(f"spark-{number:05d}", attempt_id, input_digest=attempt_id) as attempt:
            for line in lines:
                file = _File(*line.rstrip("\n").split("\t"))
                with step("task-write"):
                    if self.directory is None:
                        self._adopt_upload(attempt, file)
                    else:
                        local, size = self.directory / file.path, int(file.size)
                        attempt.add_file(local, file.path, expected_size=size, adopt=True, with_sha256=False)
        return attempt

    def _adopt_upload(self, attempt: Attempt, file: _File) -> None:
        tags, size = file.etags.split(","), int(file.size)
        last = size - self.part_bytes * (len(tags) - 1)
        parts = [
            Part(number=number, size=self.part_bytes if number < len(tags) else last, etag=etag)
            for number, etag in enumerate(tags, start=1)
        ]
        upload = PendingUpload(
            key=with_short_id(file.path, self.job.short_id),
            upload_id=file.upload_id,
            token=self.token,
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


def hidden_directory(job: Job) -> Path | None:
    """Return a new directory in a destination on a file system, which goes with the job; None on S3."""
    if not isinstance(job.store, FileTree):
        return None
    task, attempt = TaskId("spark"), new_attempt_id()
    return make_attempt_dir(job.store, job.job_id, job.job_attempt, task, attempt)
