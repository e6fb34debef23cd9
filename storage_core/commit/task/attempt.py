"""One try at a task: it writes pending files, and its task commit is one pending set.

Source: commit protocol, "Writing and task commit".
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import BinaryIO, Final, NamedTuple, Self

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.committers import committer_named
from lockgate.storage_core.commit.committers.early_visibility import show
from lockgate.storage_core.commit.destination.conflict_mode import owner_of
from lockgate.storage_core.commit.process import OwnProcess
from lockgate.storage_core.commit.records.job import JobRecord, PendingFile, PendingSet
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.commit.staged_files.directories import staging_dir
from lockgate.storage_core.commit.task.task_commit import create_pending_set
from lockgate.storage_core.commit.temporary import make_attempt_dir
from lockgate.storage_core.commit.uploads.pending_file import PendingFileWriter
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    FencedError,
    InvalidInputError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId, new_token, short_id_in, with_short_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.file_tree import FileTree
from lockgate.storage_core.stores.metadata import check_metadata
from lockgate.storage_core.stores.protocol import check_key

COPY_BYTES: Final = 1024 * 1024


class _Description(NamedTuple):
    """What a writer said of a file when it opened it, until the file becomes an upload."""

    content_type: str | None = None
    metadata: Mapping[str, str] = MappingProxyType({})


class Attempt:
    """One try at one task. As a context manager it commits on success and aborts on an exception.

    Files may be written by several threads of the process that began it, each file by one. Nothing of it is
    visible before the job commits, and nothing at all if another attempt of the task is chosen.
    """

    def __init__(
        self,
        folder: JobFolder,
        job: JobRecord,
        *,
        job_attempt: JobAttemptId,
        task_id: TaskId,
        attempt_id: AttemptId,
        stamp: Stamp,
        input_digest: str,
        settings: Settings,
        clock: Clock,
        check_driver: Callable[[], None],
        tell_committed: Callable[[PendingSet], None],
    ) -> None:
        self.task_id = task_id
        self.attempt_id = attempt_id
        self.job_attempt = job_attempt
        self._folder = folder
        self._job = job
        self._stamp = stamp
        self._input_digest = input_digest
        self._settings = settings
        self._clock = clock
        self._check_driver = check_driver
        self._tell_committed = tell_committed
        self._committer = committer_named(job.spec.committer)
        self._process = OwnProcess(f"attempt {attempt_id} of task {task_id}")
        self._lock = threading.Lock()
        self._writers: list[PendingFileWriter] = []
        self._files: dict[str, PendingFile] = {}
        self._described: dict[str, _Description] = {}
        self._opened: dict[str, BinaryIO] = {}
        self._executor = ThreadPoolExecutor(
            max_workers=settings.parallelism, thread_name_prefix="lockgate-part"
        )
        self._directories: list[Path] = []
        self._all_shown = False
        self._aborted = False
        self._sealed = False
        self._may_be_committed = False
        self._committed: PendingSet | None = None

    @cached_property
    def staging_dir(self) -> Path:
        """A directory of this attempt's own, mode 0700, made when first asked for."""
        root = staging_dir(self._job, self._settings)
        made = root / "attempts" / self.attempt_id
        made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directories.append(made)
        return made

    @cached_property
    def temporary_dir(self) -> Path:
        """A directory of this attempt's own inside the destination, hidden from readers; file systems only.

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
        """What the attempt has made pending so far, by key."""
        with self._lock:
            return [self._files[key] for key in sorted(self._files)]

    @property
    def opened(self) -> Mapping[str, BinaryIO]:
        """What was opened for writing and not dropped, by path."""
        with self._lock:
            return dict(self._opened)

    @property
    def aborted(self) -> bool:
        """Whether all that it wrote was dropped."""
        return self._aborted

    def open(
        self, path: str, *, content_type: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> BinaryIO:
        """Open a file for writing, below the destination; it becomes visible with the job, or never.

        Args:
            path: Such as `day=1/a.parquet`; the file's name gets the job's short id.
            content_type: MIME type, kept by stores that keep one.
            metadata: Such as `{"pipeline": "nightly"}`, kept by stores that keep some.

        Raises:
            InvalidInputError: The path leaves the destination, is hidden, or was written already; or no
                store could keep the metadata.
            ConflictError: The attempt has ended, or something has cleared its directory.
            FencedError: This process is a fork of the one that began it.
        """
        self._check_path(path)
        self._described[path] = _Description(content_type, check_metadata(metadata or {}))
        file = self._committer.open(self, path)
        with self._lock:
            self._opened[path] = file
        return file

    def open_upload(self, path: str) -> PendingFileWriter:
        """Open a file that is streamed into a pending upload, whatever the committer.

        Raises:
            InvalidInputError: As `open`.
        """
        key = self._check_path(path)
        described = self._described.get(path, _Description())
        writer = PendingFileWriter(
            self._folder.store,
            path,
            key,
            new_token(),
            part_bytes=self._settings.part_bytes,
            executor=self._executor,
            content_type=described.content_type,
            metadata=described.metadata,
            on_close=self._add,
            process=self._process,
        )
        with self._lock:
            self._writers.append(writer)
        return writer

    def add_file(
        self, local: Path, path: str, *, rows: int | None = None, expected_size: int | None = None
    ) -> None:
        """Turn a finished file into a pending upload; it stays where it is.

        A `file-*` committer takes it without copying where it lies on the destination's file system: nobody
        may write to it afterwards.

        Args:
            local: A regular file; no link.
            path: As for `open`.
            rows: Where known.
            expected_size: Bytes that the frozen listing promised.

        Raises:
            ConflictError: The file has another size, or changed while it was read; nothing is committed.
            InvalidInputError: It is not there or no regular file.
        """
        try:
            descriptor = os.open(local, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidInputError(
                f"staged file {local} cannot be opened ({error.strerror}); "
                "the staging directory must be one that workers see"
            ) from None
        with os.fdopen(descriptor, "rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size
            _check_size(local, size, expected_size)
            if self._committer.place == "file systems" and self._adopt(local, path, rows, size):
                return
            with self.open_upload(path) as writer:
                writer.rows = rows
                while chunk := source.read(COPY_BYTES):
                    writer.write(chunk)
                _check_size(local, writer.tell(), size)

    def drop(self, path: str) -> None:
        """Drop one file, whole or half-written; its path may be written again. Nothing is left to drop twice.

        What is shown already is seen until the job's end, for only that knows what another attempt published
        under its name.

        Raises:
            ConflictError: The task commit has begun: its files belong together.
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
            for writer in writers:
                writer.abort()
            for file in dropped:
                with suppress(LockgateError):  # what stays is swept at the job's end
                    self._folder.store.abort_upload(file.key, file.upload.upload_id)
        if opened is not None:
            _close_dropped(opened)
        for directory in self._directories:
            (directory / path).unlink(missing_ok=True)

    def show(self, files: Iterable[PendingFile]) -> None:
        """Let readers that list see pending files before the job commits; its end settles which stay.

        Raises:
            UploadGoneError: A file is lost: the store has ended its upload, and not made it visible.
            NotAppliedError: The store refused; the files stay pending.
        """
        with step("show"):
            for _ in in_parallel(
                lambda file: show(self._folder, file.upload), files, self._settings.parallelism
            ):
                pass

    def commit(self) -> PendingSet:
        """Commit the task: seal all files and create the pending set, by which they belong to the job.

        What is open still is closed, and so committed as far as it was written. A second call returns the
        same. If it fails, the attempt is aborted; only a lost answer leaves its uploads, for a pending set
        that stands may name them.

        Returns:
            What was recorded.

        Raises:
            ConflictError: The job is decided or ended, or a file is gone that the attempt has written; the
                attempt is aborted.
            FencedError: The attempt was aborted by another process, its driver was replaced, or this process
                is a fork of the one that began it.
            OutcomeUnknownError: It is not known whether the pending set stands; call again.
            UploadGoneError: A file was lost in being shown: nothing is committed, or under `file-v2` all but
                that file; run the task again.
            StoreUnavailableError: The store refused for now. Under `file-v2` the task may have committed, and
                its files are not shown yet; call again, or leave it to the job's commit.
        """
        self._process.check()
        if self._committed is None:
            self._committed = self._commit()
            self._end()
            self._tell_committed(self._committed)
        if not self._all_shown:
            self._committer.after_task_commit(self)
            self._all_shown = True
        return self._committed

    def abort(self) -> None:
        """Drop all that the attempt wrote, unless it has committed, or may have; idempotent.

        What is shown already is seen until the job's end, as after `drop`.

        Raises:
            FencedError: This process is a fork of the one that began it.
        """
        self._process.check()
        if self._committed is not None or self._aborted or self._may_be_committed:
            return
        self._aborted = True
        with step("abort-attempt"):
            for writer in self._writers:
                writer.abort()
            for file in self._files.values():
                with suppress(LockgateError):  # what stays is swept at the job's end
                    self._folder.store.abort_upload(file.key, file.upload.upload_id)
        for opened in self.opened.values():
            _close_dropped(opened)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        elif (
            self._process.is_this
        ):  # a fork that leaves the block in which it began leaves its parent's attempt
            self.abort()

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
                raise InvalidInputError(f"path {path!r} was written already by this attempt")
        return key

    def _adopt(self, local: Path, path: str, rows: int | None, size: int) -> bool:
        """Take a file as it lies; False where that cannot be done and it must be copied."""
        store, key = self._folder.store, self._check_path(path)
        if not isinstance(store, FileTree):
            return False
        try:
            with step("task-write"):
                upload = store.adopt_file(local, key, new_token())
        except (UnsupportedStoreError, AccessDeniedError):
            return False
        self._add(PendingFile(path=path, upload=upload, rows=rows))
        _check_size(local, upload.size, size)
        return True

    def _add(self, file: PendingFile) -> None:
        with self._lock:
            self._files[file.key] = file
        try:
            self._committer.after_close(self, file)
        except UploadGoneError:
            self.abort()  # a task that commits without it would lack a file
            raise

    def _commit(self) -> PendingSet:
        if self._aborted:
            raise ConflictError(
                f"attempt {self.attempt_id} of task {self.task_id} was aborted; begin another"
            )
        if not self._sealed:
            self._seal()
        # From here on the pending set may stand and name the uploads, whatever cuts this off: a lost answer,
        # a time limit, a worker's shutdown. Then only the job's end drops them.
        in_doubt, self._may_be_committed = self._may_be_committed, True
        try:
            return self._save()
        except (NotAppliedError, FencedError):
            self._may_be_committed = in_doubt  # this try had no effect
            self.abort()
            raise

    def _seal(self) -> None:
        try:
            self._committer.before_task_commit(self)
            for writer in self._writers:
                writer.close()
            self._sealed = True
        except OutcomeUnknownError:
            raise  # it may be called again
        except BaseException:
            self.abort()
            raise

    def _save(self) -> PendingSet:
        record = PendingSet(
            job_id=self._folder.job_id,
            job_attempt=self.job_attempt,
            task_id=self.task_id,
            attempt_id=self.attempt_id,
            stamp=self._stamp,
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
    with suppress(OSError):  # what cannot be written any more is not wanted either
        file.close()


def _check_size(local: Path, size: int, expected: int | None) -> None:
    if expected is not None and size != expected:
        raise ConflictError(
            f"staged file {local} has {size} bytes, not the {expected} of the frozen listing; "
            "nothing of it is committed; write the stage again"
        )
