"""`AppendableFileSystem`: appendable files for pandas, PyArrow and other users of fsspec."""

from __future__ import annotations

import io
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final

from fsspec.core import get_compression, has_magic  # type: ignore[import-untyped]  # fsspec has no types
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # fsspec has no types
from fsspec.utils import stringify_path  # type: ignore[import-untyped]  # fsspec has no types

from lockgate.storage_core.errors import (
    InvalidInputError,
    PathExistsError,
    PathNotDirectoryError,
    PathNotFoundError,
)
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.queries import FileStatus
from lockgate.storage_core.files.writing.writer import FileWriter
from lockgate.storage_core.fsspec.paths import Info
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import Settings, load_settings

APPENDABLE_PROTOCOL: Final = "lockgate-files"


class AppendableFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The tree of appendable files: read (`rb`), append (`ab`), and create (`wb`, `xb`).

        fs = AppendableFileSystem()
        with fs.open("/logs/a.csv", "ab") as log:
            log.write(b"1,2")
            log.flush()                       # durable on all members, and visible to readers
        pandas.read_csv(fs.open("/logs/a.csv"))

    A file that is opened to read has the bytes that were flushed. Bytes that stand are never replaced: `wb`
    and each copy need a new name. Errors of paths are `FileNotFoundError` and its like. fsspec does not cache
    instances; `close` gives up the volumes of this process.
    """

    protocol = APPENDABLE_PROTOCOL
    cachable = False
    root_marker = "/"

    def __init__(
        self, files: Files | None = None, *, settings: Settings | None = None, **options: Any
    ) -> None:
        """Create the file system; the journal is opened by the first call.

        Args:
            files: The files; by default those of the settings' journal.
            settings: Settings; by default from the environment.
            options: Options of fsspec.
        """
        super().__init__(**options)
        self._given = files
        self._settings = settings
        self._opened = ExitStack()

    @property
    def files(self) -> Files:
        """The files of the journal."""
        if self._given is None:
            settings = self._settings or load_settings()
            self._given = self._opened.enter_context(open_files(settings))
        return self._given

    def close(self) -> None:
        """Close what this instance has opened; writers that are open are left to recovery."""
        self._given = None
        self._opened.close()

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Info] | list[str]:  # noqa: ARG002
        """List a directory; a file lists itself."""
        path = self._strip_protocol(path)
        found = self.info(path)
        if found["type"] == "file":
            return [found] if detail else [path]
        names: list[FileStatus] = []
        while page := self.files.list(path, names[-1].name if names else None):
            names += page
        below = [self._info(f"{path.rstrip('/')}/{one.name}", one) for one in names]
        return below if detail else [info["name"] for info in below]

    def info(self, path: str, **kwargs: Any) -> Info:  # noqa: ARG002 - fsspec's signature
        """Return the description of a file or directory.

        The size of an open file is what was flushed, None if its volumes do not tell.

        Raises:
            FileNotFoundError: It does not exist.
        """
        path = self._strip_protocol(path)
        return self._info(path, self.files.status(path))

    def exists(self, path: str, **kwargs: Any) -> bool:  # noqa: ARG002 - fsspec's signature
        """Return whether the path names something; an error of the journal is raised."""
        try:
            self.files.status(self._strip_protocol(path))
        except (PathNotFoundError, PathNotDirectoryError):
            return False
        return True

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the bytes of files; of an open one, if its volumes are away, those in the journal."""
        sizes = super().du(path, total=False, maxdepth=maxdepth, withdirs=withdirs, **kwargs)
        for name, size in sizes.items():
            if size is None:
                sizes[name] = self.files.status(name).length_bytes
        return sum(sizes.values()) if total else sizes

    def created(self, path: str) -> datetime:
        """Return when a file or directory was made."""
        return datetime.fromtimestamp(self.info(path)["made_s"], UTC)

    def modified(self, path: str) -> datetime:
        """Return when a file was made, opened or closed last."""
        return datetime.fromtimestamp(self.info(path)["changed_s"], UTC)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:  # noqa: ARG002
        """Return the bytes of a file, or a range of them; negative numbers count from its end."""
        with self._input(self._strip_protocol(path)) as file:
            begin, stop, _ = slice(start, end).indices(file.size)
            file.seek(begin)
            return file.read(max(stop - begin, 0))

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:  # noqa: ARG002
        """Make a directory."""
        path = self._strip_protocol(path)
        if create_parents and path.rpartition("/")[0]:
            self.files.make_directory(path.rpartition("/")[0], parents=True)
        self.files.make_directory(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        path = self._strip_protocol(path)
        if not exist_ok and self.exists(path):
            raise PathExistsError(f"{path} exists already; nothing was changed", path)
        self.files.make_directory(path, parents=True)

    def rmdir(self, path: str) -> None:
        """Delete an empty directory."""
        if self.info(path)["type"] != "directory":
            raise PathNotDirectoryError(f"{path} is a file; nothing was deleted", path)
        self.files.delete(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        """Delete a file; its writer is fenced."""
        self.files.delete(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:  # noqa: ARG002
        """Delete files, or directories with what is below them, each in one step.

        What is no name is a pattern, such as `/logs/*.log`.
        """
        for one in path if isinstance(path, list) else [path]:
            is_pattern = has_magic(one) and not self.exists(one)
            for named in self.expand_path(one) if is_pattern else [one]:
                self.files.delete(self._strip_protocol(named), recursive=recursive)

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Move a file or directory in one step, into `path2` if that is a directory.

        An open file keeps its writer.
        """
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(target):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        self.files.rename(source, target)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Copy a file to a new one, or make the directory that one of a copied tree becomes."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while chunk := source.read(self.blocksize):
                target.write(chunk)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:  # noqa: ARG002
        """Create an empty file, or cut one that is there."""
        path = self._strip_protocol(path)
        if not self.exists(path):
            self._open(path, "xb").close()
        elif truncate:
            self.files.truncate(path, 0)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file; see fsspec.

        Raises:
            InvalidInputError: A file is to be written compressed: the compressor would not close it.
        """
        compression = get_compression(self._strip_protocol(path), compression)
        if compression is not None and "r" not in mode:
            raise InvalidInputError(
                f"open {path} with compression={compression!r}: nothing was opened; use fsspec.open(URL, "
                f"{mode!r}, compression={compression!r}), which closes the file, too"
            )
        return super().open(path, mode, block_size, cache_options, compression, **kwargs)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/" + stringify_path(path).removeprefix(f"{APPENDABLE_PROTOCOL}://").strip("/")

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,  # noqa: ARG002 - a reader reads ahead by itself
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> _Input | FileWriter:
        file = self._input(path) if mode == "rb" else self._output(path, mode, autocommit)
        vars(file)["fs"] = self  # which closes the volumes when nothing needs it any more
        return file

    def _output(self, path: str, mode: str, autocommit: bool) -> FileWriter:
        if not autocommit:
            raise InvalidInputError(
                f"open {path} in a transaction: nothing was opened; a flush is durable and cannot be taken "
                "back, so write outside of a transaction"
            )
        if mode == "ab" and self.exists(path):
            return self.files.append(path)
        if mode not in {"ab", "wb", "xb"}:
            raise InvalidInputError(
                f"open {path} with mode {mode!r}: nothing was opened; use rb, ab, wb or xb"
            )
        try:
            return self.files.create(path)
        except PathExistsError as error:
            raise PathExistsError(f"{error}; append to it (ab), or delete it first", path) from None

    def _input(self, path: str) -> _Input:
        return _Input(self.files.open(path))

    def _info(self, path: str, status: FileStatus) -> Info:
        return {
            "name": path,
            "size": self.files.readable_bytes(path) if status.is_open else status.length_bytes,
            "type": "directory" if status.is_directory else "file",
            "is_open": status.is_open,
            "changed_s": status.changed_s,
            "made_s": status.made_s,
        }


class _Input(io.BufferedReader):
    """A reader whose `read(n)` returns fewer bytes at the end only, as libraries expect."""

    @property
    def size(self) -> int:
        """Return the number of bytes that were flushed."""
        at = self.tell()
        try:
            return self.seek(0, io.SEEK_END)
        finally:
            self.seek(at)
