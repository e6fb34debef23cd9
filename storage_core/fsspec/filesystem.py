"""`LockgateFileSystem`: pending files below a magic directory, published files everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from fsspec.core import get_compression  # type: ignore[import-untyped]  # fsspec has no types
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # fsspec has no types
from fsspec.transaction import Transaction  # type: ignore[import-untyped]  # fsspec has no types
from fsspec.utils import stringify_path  # type: ignore[import-untyped]  # fsspec has no types

from lockgate.storage_core.commit.destination.as_of import AsOf, check_as_of
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.pending_set import PendingSet
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.fsspec.paths import (
    BASE,
    MAGIC,
    PROTOCOL,
    Info,
    MagicPath,
    magic_path,
    magic_root,
    strip_protocol,
)
from lockgate.storage_core.fsspec.pending import EXCLUSIVE, WRITE, PendingOutput, PendingTask, PendingTasks
from lockgate.storage_core.fsspec.published import PublishedDestinations, PublishedInput
from lockgate.storage_core.fsspec.text_and_compression import layered
from lockgate.storage_core.settings import Settings

TEXT_OPTIONS: Final = ("encoding", "errors", "newline")


class TaskTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """A transaction that fails if it wrote no file: a library that opened a URL itself has bypassed it."""

    def complete(self, commit: bool = True) -> None:
        """Commit the tasks of all files opened in it, or abort them.

        Raises:
            ConflictError: No file was opened through its file system instance.
            LockgateError: A task did not commit; the tasks after it are aborted.
        """
        wrote = bool(self.files)
        super().complete(commit)
        if commit and not wrote:
            raise ConflictError(
                "this transaction wrote no file, so no task was committed; each URL that a library opens "
                "itself is a separate file system instance: pass it the instance (filesystem=fs) or a file "
                "from fs.open; a task without data commits with commit_task(path, allow_empty=True)"
            )


class LockgateFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Destinations as a file system for pandas, Polars, PyArrow, DuckDB and other users of fsspec.

    A file `<destination>/__magic_job-<job id>/<task>/__base/a/b` is written as `a/b` of an attempt at that
    task: it is pending until the job commits, and never visible unless the task commits (`commit_task`, or
    the end of `with fs.transaction`). Any other path is read-only and shows the destination's live files.

    An instance makes one attempt at each task that it writes, and may be used from several threads. fsspec
    does not cache instances: a second try in one process would otherwise join the attempt of the first.
    """

    protocol = PROTOCOL
    cachable = False
    transaction_type = TaskTransaction

    def __init__(
        self,
        *,
        as_of: AsOf | None = None,
        destination: str | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        """Create the file system; this sends no request.

        Args:
            as_of: Read destinations as of a turn of their log, a time or a tag: see `lockgate.read_manifest`.
            destination: Destination of all paths that are read; by default the nearest directory, at or above
                a path, in which a job was ever set up.
            settings: Settings; by default from the environment.
            options: Options of fsspec.
        """
        super().__init__(**options)
        self._pending = PendingTasks(settings)
        self._published = PublishedDestinations(
            as_of=None if as_of is None else check_as_of(as_of), destination=destination, settings=settings
        )

    def begin_task(self, job: Job, task_id: str, *, try_number: int = 0) -> str:
        """Begin an attempt at a task of a job opened by this process.

        Args:
            job: The job.
            task_id: Id of the task, the same in every retry.
            try_number: Number of the try, as for `Job.attempt`.

        Returns:
            The directory to write below; paths below it are paths in the destination.

        Raises:
            ConflictError: The job is decided or has ended.
        """
        self._pending.adopt(job)
        root = magic_root(job.destination, job.job_id, task_id)
        self._task_at(root).begin(try_number)
        return root

    def commit_task(self, path: str, *, allow_empty: bool = False) -> PendingSet:
        """Commit the task of a path: its files become part of the job. Safe to call again.

        Args:
            path: The task's directory, or any path in it.
            allow_empty: Whether to commit a task for which this instance opened no file. By default it is
                refused: its files may have been written through another instance, and would be missing.

        Raises:
            ConflictError: This instance wrote no file of the task, or the job is decided.
            FencedError: The job's driver was replaced.
            InvalidInputError: A file was not closed, so it may be incomplete; the task is aborted.
            OutcomeUnknownError: The task may have committed; call again.
        """
        return self._task_at(path).commit(allow_empty=allow_empty)

    def abort_task(self, path: str) -> None:
        """Discard what this instance wrote of a path's task, unless it has committed."""
        self._task_at(path).abort()

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Info] | list[str]:
        """List a directory: pending files that this instance wrote, or live files.

        Args:
            path: Path of a directory; a file lists itself.
            detail: Whether to return more than names.
            kwargs: `snapshot`, which a walk passes so that it sees only one turn.
        """
        path = self._strip_protocol(path)
        magic = magic_path(path)
        if magic is not None:
            found = self._pending.children(magic)
        else:
            found = self._published.children(path, kwargs.get("snapshot"))
        return found if detail else [info["name"] for info in found]

    def info(self, path: str, **kwargs: Any) -> Info:  # noqa: ARG002 - fsspec's signature
        """Return the description of a file or directory."""
        path = self._strip_protocol(path)
        magic = magic_path(path)
        return self._published.info(path) if magic is None else self._pending.info(magic)

    def walk(self, path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Walk a tree as of one turn."""
        path = self._strip_protocol(path)
        if magic_path(path) is None and "snapshot" not in kwargs:
            with suppress(FileNotFoundError):  # the walk itself handles this error, as its caller chose
                kwargs["snapshot"] = self._published.newest(path)
        yield from super().walk(path, *args, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether a path exists; an error of the store is raised."""
        try:
            self.info(path, **kwargs)
        except OSError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """Return whether a path is a file; an error of the store is raised."""
        try:
            return bool(self.info(path)["type"] == "file")
        except OSError:
            return False

    def modified(self, path: str) -> datetime:
        """Return when a live file was written, by the store's clock."""
        snapshot, file = self._published.live_file(self._strip_protocol(path))
        return datetime.fromtimestamp(snapshot.store.head(snapshot.manifest.path(file.key)).modified_s, UTC)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget everything read, including files of earlier listings."""
        super().invalidate_cache(path)
        self._published.forget()

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:  # noqa: ARG002
        """Record a directory below a magic directory; stores have no directories."""
        magic = self._magic(path, "mkdir")
        if magic.task_id is not None:
            self._pending.task(magic).make_directory(magic.text)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: ARG002
        """Record a directory below a magic directory; stores have no directories."""
        self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory below a magic directory."""
        self._remove(path)

    def rm_file(self, path: str) -> None:
        """Discard a pending file, or remove an empty directory, below a magic directory."""
        self._remove(path)

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Raise `InvalidInputError`: a pending file has its final name from the start."""
        raise InvalidInputError(
            f"mv {path1} to {path2}: nothing was moved; a pending file has its final name from the start: "
            "write it under that name (DuckDB: USE_TMP_FILE false)"
        )

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Copy a published file to a pending one."""
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while chunk := source.read(self.blocksize):
                target.write(chunk)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file.

        Args:
            path: Path of a pending file to write, or of a live file to read.
            mode: `wb`, `xb` or `rb`, or without the `b` for text.
            block_size: Option of fsspec, for reading.
            cache_options: Options of fsspec, for reading.
            compression: A compression of fsspec, or `infer`.
            kwargs: `encoding`, `errors` and `newline` for text; other options of fsspec.
        """
        if "r" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **kwargs)
        compression = get_compression(self._strip_protocol(path), compression)
        text: dict[str, Any] | None = None
        if "b" not in mode:
            text = {option: kwargs.pop(option) for option in TEXT_OPTIONS if option in kwargs}
            mode = mode.replace("t", "") + "b"
        return layered(super().open(path, mode, **kwargs), compression=compression, text=text)

    def __reduce__(self) -> Any:
        """Return how to create an instance with the same options.

        Raises:
            ConflictError: A task is under way; files of the new instance would not belong to it.
        """
        self._pending.check_none_under_way()
        return super().__reduce__()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return strip_protocol(stringify_path(path))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,  # noqa: ARG002 - only committing a task commits
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> PendingOutput | PublishedInput:
        magic = magic_path(path)
        if mode in {WRITE, EXCLUSIVE}:
            magic = self._magic(path, "open")
            return self._pending.task(magic).open(magic, mode)
        if mode != "rb":
            raise InvalidInputError(
                f"open {path} with mode {mode!r}: nothing was opened; a file is written once, from its start "
                f"({WRITE} or {EXCLUSIVE}), or read (rb); write appended rows to another file"
            )
        if magic is not None:
            self._pending.info(magic)
            raise InvalidInputError(
                f"open {path}: a pending file cannot be read; commit its job, and read it at the destination"
            )
        snapshot, file = self._published.live_file(path)
        return PublishedInput(
            self, path, snapshot, file, block_size=block_size, cache_options=cache_options, **kwargs
        )

    def _task_at(self, path: str) -> PendingTask:
        return self._pending.task(self._magic(path, "task"))

    def _magic(self, path: str, call: str) -> MagicPath:
        stripped = self._strip_protocol(path)
        magic = magic_path(stripped)
        if magic is None:
            raise InvalidInputError(
                f"{call} {path}: nothing was changed; only jobs change a destination: write below "
                f"<destination>/{MAGIC}<job id>/<task>/{BASE}/, which job_filesystem(job, task) returns"
            )
        return magic

    def _remove(self, path: str) -> None:
        magic = self._magic(path, "rm")
        self._pending.info(magic)
        self._pending.task(magic).remove(magic)


@contextmanager
def job_filesystem(
    job: Job, task_id: str, *, allow_empty: bool = False, try_number: int = 0
) -> Iterator[tuple[LockgateFileSystem, str]]:
    """Write one task of a job by path. The task commits at the end of the block; an exception aborts it.

        with job_filesystem(job, "part-0") as (fs, root):
            frame.to_parquet(f"{root}/day=1/a.parquet", filesystem=fs)

    Args:
        job: Job that this process has opened or attached to.
        task_id: Id of the task, the same in every retry.
        allow_empty: Whether to commit a task for which the file system opened no file. By default it is
            refused: its files may have been written through another file system, and would be missing.
        try_number: Number of the try, such as Airflow's `ti.try_number`; see `Job.attempt`.

    Yields:
        A file system for the task, and the directory to write below. For a library that accepts only URLs,
        the directory is `fs.unstrip_protocol(root)`.

    Raises:
        ConflictError: The job is decided or has ended, or nothing was written through the file system.
        FencedError: The job's driver was replaced; the task has not committed.
        OutcomeUnknownError: The task may have committed; call `fs.commit_task(root)` again.
    """
    fs = LockgateFileSystem()
    root = fs.begin_task(job, task_id, try_number=try_number)
    try:
        yield fs, root
        fs.commit_task(root, allow_empty=allow_empty)
    except BaseException:
        fs.abort_task(root)  # unless it may have committed
        raise
