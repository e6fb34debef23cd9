"""Task attempts: an attempt writes pending files, and its task commit creates one pending set.

Source: commit protocol, "Writing and task commit".
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import BinaryIO, NamedTuple, NoReturn, Self

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.committers import get_committer
from lockgate.storage_core.commit.committers.early_visibility import publish_early
from lockgate.storage_core.commit.destination.visible_files import owner_of
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics, PendingFile, PendingSet
from lockgate.storage_core.commit.staged_files import make_attempt_dir, staging_dir
from lockgate.storage_core.commit.task import local_file
from lockgate.storage_core.commit.task.task_commit import create_pending_set, refuse_unclosed
from lockgate.storage_core.commit.uploads.copied_upload import copied_upload
from lockgate.storage_core.commit.uploads.parquet_footer import TAIL_BYTES, statistics_in_tail
from lockgate.storage_core.commit.uploads.pending_file_writer import PendingFileWriter
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.forks import ForkGuard
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId, new_token, short_id_in, with_short_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.os_errors import translated
from lockgate.storage_core.stores.protocol import PendingUpload, check_key, check_metadata


class _FileHeaders(NamedTuple):
    """Content type and metadata that a writer gave when it opened a file."""

    content_type: str | None = None
    metadata: Mapping[str, str] = MappingProxyType({})


class Attempt:
    """One attempt of a task. As a context manager it commits on success and aborts on an exception.

    Several threads of the process that began the attempt may write files, one thread per file. A fork of that
    process gets `FencedError`. Nothing is visible before the job commits, or ever if another attempt of the
    task is selected.
    """

    def __init__(
        self,
        folder: JobFolder,
        job: JobRecord,
        *,
        job_attempt: JobAttemptId,
        task_id: TaskId,
        attempt_id: AttemptId,
        input_digest: str,
        try_number: int,
        settings: Settings,
        clock: Clock,
        check_driver: Callable[[], None],
        on_committed: Callable[[PendingSet], None],
    ) -> None:
        self.task_id = task_id
        self.attempt_id = attempt_id
        self.job_attempt = job_attempt
        self._folder = folder
        self._job = job
        self._input_digest = input_digest
        self._try_number = try_number
        self._settings = settings
        self._clock = clock
        self._check_driver = check_driver
        self._on_committed = on_committed
        self._committer = get_committer(job.spec.committer)
        self._process = ForkGuard(f"attempt {attempt_id} of task {task_id}")
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        self._writers: list[PendingFileWriter] = []
        self._files: dict[str, PendingFile] = {}
        self._headers: dict[str, _FileHeaders] = {}
        self._opened: dict[str, BinaryIO] = {}
        self._executor = ThreadPoolExecutor(
            max_workers=settings.near_calls, thread_name_prefix="lockgate-part"
        )
        self._directories: list[Path] = []
        self._all_visible = False
        self._aborted = False
        self._sealed = False
        self._may_be_committed = False
        self._committed: PendingSet | None = None

    @cached_property
    def staging_dir(self) -> Path:
        """Private directory of this attempt, created with mode 0700 on first use."""
        made = staging_dir(self._job, self._settings) / "attempts" / self.attempt_id
        with translated("make", str(made), changes=True):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directories.append(made)
        return made

    @cached_property
    def temporary_dir(self) -> Path:
        """Private directory of this attempt inside the destination, hidden from readers.

        Raises:
            UnsupportedStoreError: The destination is not on a file system.
        """
        made = make_attempt_dir(
            self._folder.store, self._job.job_id, self.job_attempt, self.task_id, self.attempt_id
        )
        self._directories.append(made)
        return made

    @property
    def files(self) -> Sequence[PendingFile]:
        """The attempt's pending files so far, sorted by key."""
        with self._lock:
            return [self._files[key] for key in sorted(self._files)]

    @property
    def opened(self) -> Mapping[str, BinaryIO]:
        """Files that were opened for writing and not dropped, by path."""
        with self._lock:
            return dict(self._opened)

    @property
    def aborted(self) -> bool:
        """Whether the attempt was aborted."""
        return self._aborted

    def open(
        self, path: str, *, content_type: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> BinaryIO:
        """Open a file for writing; it becomes visible with the job, or never.

        Args:
            path: Path below the destination, such as `day=1/a.parquet`; the name gets the job's short id.
            content_type: MIME type, for stores that keep one.
            metadata: Metadata such as `{"pipeline": "nightly"}`, for stores that keep it.

        Raises:
            InvalidInputError: The path leaves the destination, is hidden, or was already written; or the
                metadata are invalid.
            ConflictError: The attempt has ended, or its directory is gone.
        """
        self._check_path(path)
        self._headers[path] = _FileHeaders(content_type, check_metadata(metadata or {}))
        file = self._committer.open(self, path)
        with self._lock:
            self._opened[path] = file
        return file

    def open_upload(self, path: str, size: int | None = None) -> PendingFileWriter:
        """Open a file that is streamed into a pending upload, with any committer.

        Args:
            path: Path below the destination.
            size: Size of the file, if it is known: then its parts are equal, and few enough.

        Raises:
            InvalidInputError: See `open`.
        """
        key, store = self._check_path(path), self._folder.store
        headers = self._headers.get(path, _FileHeaders())
        writer = PendingFileWriter(
            store,
            path,
            key,
            new_token(),
            part_bytes=max(self._settings.part_bytes, -(-(size or 0) // store.capabilities.max_parts)),
            grows=size is None and not self._settings.s3_equal_parts,
            executor=self._executor,
            content_type=headers.content_type,
            metadata=headers.metadata,
            on_close=self._add,
            process=self._process,
        )
        with self._lock:
            self._writers.append(writer)
        return writer

    def add_file(
        self,
        local: Path,
        path: str,
        *,
        rows: int | None = None,
        expected_size: int | None = None,
        adopt: bool = False,
        with_sha256: bool = True,
    ) -> None:
        """Turn a finished file into a pending upload; the local file is kept.

        A `file-*` committer takes a file on the destination's file system without a copy, and so does every
        committer with `adopt`: do not write to it afterwards.

        Args:
            local: Regular file; not a symbolic link.
            path: Path below the destination, as for `open`.
            rows: Number of rows, if known.
            expected_size: Size in bytes in the frozen listing.
            adopt: The file is never written to again: link it instead of copying it, where the destination is
                on the same file system.
            with_sha256: Record the SHA-256 of a file that is copied, which an audit of staged files needs;
                that of a file that is linked is recorded if the job requires an audit.

        Raises:
            ConflictError: The file has another size, or changed while it was read; nothing is committed.
            InvalidInputError: The file does not exist, or is not a regular file.
        """
        with local_file.opened(local, expected_size) as source:
            if adopt or self._committer.place == "file systems":
                key, is_audited = self._check_path(path), self._job.spec.audit
                file = source.adopted_by(self._folder.store, key, path, rows=rows, with_sha256=is_audited)
                if file is not None:
                    self._add(file)
                    source.check_size(file.upload.size)
                    return
            with self.open_upload(path, source.size) as writer:
                writer.rows = rows
                source.copy_to(writer, with_sha256=with_sha256)

    def add_upload(
        self,
        path: str,
        upload: PendingUpload,
        *,
        rows: int | None = None,
        statistics: Mapping[str, ColumnStatistics] = MappingProxyType({}),
    ) -> None:
        """Take an open upload that another writer, such as Spark's own, has written completely.

        Args:
            path: Path below the destination, as for `open`.
            upload: The upload, with the key that the path has in this job.
            rows: Number of rows, if known.
            statistics: Statistics by column, if known.

        Raises:
            InvalidInputError: See `open`; or the upload has another key. It stays open until the job ends.
        """
        if (key := self._check_path(path)) != upload.key:
            raise InvalidInputError(f"path {path!r}: its upload has the key {upload.key!r}, not {key!r}")
        self._add(PendingFile(path=path, upload=upload, rows=rows, statistics=dict(statistics)))

    def add_again(self, path: str, file: LiveFile, place: str, *, with_statistics: bool) -> None:
        """Take a file of an earlier turn again, under a new name and without a copy where that can be.

        Args:
            path: Path below the destination, as for `open`.
            file: The file as the log has it.
            place: Key at which it is now.
            with_statistics: Read those of a Parquet file, for the destination's tables.

        Raises:
            InvalidInputError: See `open`.
            ObjectNotFoundError: It is gone.
        """
        key, store, found = self._check_path(path), self._folder.store, None
        with step("task-write"):
            if with_statistics and path.endswith(".parquet"):
                found = statistics_in_tail(store.get(place, start=max(0, file.size - TAIL_BYTES)), place)
            upload = copied_upload(store, place, file.size, key)
        statistics = {} if found is None else found[1]
        self._add(PendingFile(path=path, upload=upload, rows=file.rows, statistics=statistics, again=file))

    def drop(self, path: str) -> None:
        """Drop one file, complete or not; idempotent. Its path may be written again.

        A file that is already visible stays so until the job's end, which knows whether another attempt has
        published the same name.

        Raises:
            ConflictError: The task commit has begun.
            InvalidInputError: The path leaves the destination.
        """
        check_key(path)
        self._process.check()
        if self._sealed:
            raise ConflictError(
                f"attempt {self.attempt_id} of task {self.task_id} has begun to commit: {path} stays in it"
            )
        with self._lock:
            writers = [writer for writer in self._writers if writer.path == path]
            dropped = [file for file in self._files.values() if file.path == path]
            for file in dropped:
                del self._files[file.key]
            opened = self._opened.pop(path, None)
        with step("abort-attempt"):
            self._abort_uploads(writers, dropped)
        if opened is not None:
            _close_dropped(opened)
        for directory in self._directories:
            (directory / path).unlink(missing_ok=True)

    def publish_early(self, files: Iterable[PendingFile]) -> None:
        """Make pending files visible before the job commits; the job's end decides which ones stay.

        Raises:
            UploadGoneError: A file is lost: the store ended its upload without making it visible.
            NotAppliedError: The store refused; the files stay pending.
        """
        with step("show"):
            for _ in in_parallel(
                lambda file: publish_early(self._folder, file.upload), files, self._settings.near_calls
            ):
                pass

    def commit(self) -> PendingSet:
        """Commit the task: seal all files and create the pending set, which adds them to the job.

        A second call, also from another thread, returns the same set. On failure the attempt is aborted. Only
        a lost answer keeps its uploads, as the pending set may exist.

        Returns:
            The recorded pending set.

        Raises:
            ConflictError: The job is decided or ended, or a written file is gone; the attempt is aborted.
            FencedError: The attempt was aborted by another process, or its driver was replaced.
            InvalidInputError: A file was not closed, so it may be incomplete; the attempt is aborted.
            OutcomeUnknownError: It is unknown whether the pending set exists; call again.
            UploadGoneError: A file was lost while it was made visible early. Nothing is committed, or with
                `file-v2` all other files; run the task again.
            StoreUnavailableError: The store refused for now. With `file-v2` the task may have committed with
                files not visible yet; call again, or leave it to the job commit.
        """
        self._process.check()
        with self._committing:
            if self._committed is None:
                self._committed = self._commit()
                self._end()
                self._on_committed(self._committed)
            if not self._all_visible:
                self._committer.after_task_commit(self)
                self._all_visible = True
            return self._committed

    def abort(self) -> None:
        """Drop all files of the attempt, unless it has committed or may have; idempotent.

        Files that are already visible stay so until the job's end.
        """
        self._process.check()
        if self._committed is not None or self._aborted or self._may_be_committed:
            return
        self._aborted = True
        with step("abort-attempt"):
            self._abort_uploads(self._writers, self._files.values())
        for opened in self.opened.values():
            _close_dropped(opened)
        self._end()

    def __reduce__(self) -> NoReturn:
        raise InvalidInputError(
            f"attempt {self.attempt_id} of task {self.task_id} cannot be pickled or copied: it belongs to "
            "this process; in the other process, begin an attempt: attach_job(destination, job_id).attempt(…)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        elif self._process.is_this:  # a fork that leaves the block must not abort its parent's attempt
            self.abort()

    def _abort_uploads(self, writers: Iterable[PendingFileWriter], files: Iterable[PendingFile]) -> None:
        for writer in writers:
            writer.abort()
        for file in files:
            with suppress(LockgateError):  # otherwise swept at the job's end
                self._folder.store.abort_upload(file.key, file.upload.upload_id)

    def _check_path(self, path: str) -> str:
        self._process.check()
        if self._committed is not None or self._aborted:
            raise ConflictError(f"attempt {self.attempt_id} of task {self.task_id} has ended; begin another")
        if is_hidden(check_key(path)):
            raise InvalidInputError(f"path {path!r}: names that start with _ or . are hidden from readers")
        key = with_short_id(path, self._job.short_id) if self._job.spec.unique_filenames else path
        if not self._job.spec.unique_filenames and (short := short_id_in(path)) is not None:
            owner = owner_of(self._folder.store, short)
            if owner is not None:
                raise InvalidInputError(
                    f"path {path!r} ends in the short id of job {owner}, which would be taken for its owner; "
                    "use another name, or unique_filenames=True"
                )
        with self._lock:
            if check_key(key) in self._files or any(w.key == key and not w.closed for w in self._writers):
                raise InvalidInputError(f"path {path!r} was already written by this attempt")
        return key

    def _add(self, file: PendingFile) -> None:
        with self._lock:
            self._files[file.key] = file
        try:
            self._committer.after_close(self, file)
        except UploadGoneError:
            self.abort()  # the task must not commit without this file
            raise

    def _commit(self) -> PendingSet:
        if self._aborted:
            raise ConflictError(
                f"attempt {self.attempt_id} of task {self.task_id} was aborted; begin another"
            )
        if not self._sealed:
            self._seal()
        # From here on the pending set may exist and list the uploads, even if the call is interrupted by a
        # lost answer, a time limit or a shutdown. Then only the job's end aborts them.
        in_doubt, self._may_be_committed = self._may_be_committed, True
        try:
            return self._save()
        except (NotAppliedError, FencedError):
            self._may_be_committed = in_doubt  # this try had no effect
            self.abort()
            raise

    def _seal(self) -> None:
        try:
            with self._lock:
                refuse_unclosed(self.attempt_id, self.task_id, self._opened, self._writers)
            self._committer.before_task_commit(self)
            self._sealed = True
        except OutcomeUnknownError:
            raise  # the caller may commit again
        except BaseException:
            self.abort()
            raise

    def _save(self) -> PendingSet:
        record = PendingSet(
            job_id=self._folder.job_id,
            job_attempt=self.job_attempt,
            task_id=self.task_id,
            attempt_id=self.attempt_id,
            stamp=Stamp(self._try_number),
            input_digest=self._input_digest,
            created_s=self._clock.now_s(),
            files=tuple(self.files),
        )
        with step("task-commit"):
            self._check_driver()
            return create_pending_set(self._folder, record)

    def _end(self) -> None:
        self._executor.shutdown(wait=True)
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)


def _close_dropped(file: BinaryIO) -> None:
    with suppress(OSError, LockgateError):  # the file is discarded: failed writes do not matter
        file.close()
