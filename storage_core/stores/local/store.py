"""A store in a directory, which implements an object store with links, locks and fsync.

    DEST/<key>                               visible objects
    DEST/_lockgate/uploads/<key>/~<id>       pending uploads, readable only by their owner
    DEST/_lockgate/tmp/<random>              temporary files
    DEST/_lockgate/locks/<digest>            locks of keys for check-and-change

An object is written to a temporary file, made durable, then linked (`create`) or renamed (`put`) to its key,
then its folder is made durable: a crash leaves the complete object or none.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from lockgate.storage_core.errors import (
    InvalidInputError,
    NotAppliedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.ids import Token, new_token
from lockgate.storage_core.printable import printable
from lockgate.storage_core.stores.file_tree import Obstacle, obstacles
from lockgate.storage_core.stores.local import pending_uploads
from lockgate.storage_core.stores.local.key_locks import drop_abandoned, locked
from lockgate.storage_core.stores.local.listing import (
    LOCKS,
    TEMPORARY,
    UPLOADS,
    is_hidden,
    object_info,
    objects,
    pages_of,
    present,
    version_of,
)
from lockgate.storage_core.stores.local.names import NoHardLinksError, link, rename
from lockgate.storage_core.stores.local.rooted_dir import RootedDir
from lockgate.storage_core.stores.os_errors import after_the_effect, translated
from lockgate.storage_core.stores.protocol import (
    PAGE,
    Capabilities,
    DeleteFailure,
    ObjectInfo,
    Part,
    PendingUpload,
    UploadInfo,
    check_key,
    check_listed_key,
    in_pages,
)

_CAPABILITIES: Final = Capabilities(conditional_create=True, conditional_put=True, conditional_delete=True)
_ABANDONED_S: Final = 86_400.0
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class _TemporaryFile:
    """A durable temporary file."""

    folder: int
    name: str
    status: os.stat_result


class LocalStore:
    """A `Store` in a directory, which the first write creates.

    Attributes:
        root: Absolute path of the directory.
        url: `file://` and the path without percent encoding, as in Spark and fsspec.
        capabilities: All capabilities, unless a probe found otherwise.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - keeps a root that is a link
        self.url = f"file://{self.root}"
        with translated("open", self.url, changes=False):
            exists = self.root.is_symlink() or self.root.exists()
            if exists and not self.root.is_dir():
                raise InvalidInputError(f"destination {self.root} is a file or a dead link; name a directory")
        self.capabilities = _CAPABILITIES
        self._tree = RootedDir(self.root, private=frozenset({UPLOADS, TEMPORARY, LOCKS}))

    def with_capabilities(self, capabilities: Capabilities) -> Self:
        """Return a copy with these capabilities."""
        other = copy.copy(self)
        other.capabilities = capabilities
        return other

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> ObjectInfo:
        """Write a temporary file, then rename it to the key; see `Store.put`."""
        names = self._names(key)
        with (
            translated("put", self._path(key), changes=True),
            self._temporary_file(data) as temporary,
            locked(self._tree, key),
        ):
            if if_version is not None and self._version(names) != if_version:
                raise _other_version("put", self._path(key), if_version)

            def replace(folder: int) -> None:
                self._tree.refuse_other_case(folder, names[-1])
                rename(temporary.folder, temporary.name, folder, names[-1])
                with after_the_effect("put", self._path(key)):
                    os.fsync(folder)

            self._tree.within(names[:-1], replace)
        return object_info(key, temporary.status)

    def create(self, key: str, data: bytes) -> ObjectInfo:
        """Write a temporary file, then link it, which fails if the key exists; see `Store.create`."""
        names = self._names(key)
        with translated("create", self._path(key), changes=True), self._temporary_file(data) as temporary:

            def add(folder: int) -> None:
                self._tree.refuse_other_case(folder, names[-1])
                link(temporary.folder, temporary.name, folder, names[-1])
                with after_the_effect("create", self._path(key)):
                    os.fsync(folder)

            try:
                self._tree.within(names[:-1], add)
            except FileExistsError:
                self._refuse_directory(names)
                raise pending_uploads.already_there(self._path(key)) from None
            except NoHardLinksError:
                raise UnsupportedStoreError(
                    f"create {self._path(key)}: the file system has no hard links, which create a name "
                    "once only; nothing was changed; choose another, or let a journal decide in their place "
                    "(LOCKGATE_JOURNAL_URL); if jobs ran here before, mount it as it was then, or, while "
                    f"none is at work, run `lockgate store check {self.url} --again`"
                ) from None
        return object_info(key, temporary.status)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of a file; see `Store.get`."""
        names = self._names(key)
        with self._reading("get", key), self._tree.folder(names[:-1]) as folder:
            self._tree.refuse_other_case(folder, names[-1])
            file = os.open(names[-1], _READ, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise FileNotFoundError(errno.ENOENT, "not a file")
                return _read(file, start, length)
            finally:
                os.close(file)

    def head(self, key: str) -> ObjectInfo:
        """Read a file's status; see `Store.head`."""
        names = self._names(key)
        with self._reading("head", key):
            return object_info(key, self._status(names))

    def pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[ObjectInfo]]:
        """Walk the tree in key order; see `Store.pages`."""
        with translated("list", self._path(prefix), changes=False), suppress(FileNotFoundError):
            yield from pages_of(objects(self._tree, prefix, after), prefix, page_size)

    def delete(self, key: str, *, if_version: str | None = None) -> None:
        """Unlink a file, and remove folders that become empty; see `Store.delete`."""
        names = self._listed_names(key)
        with translated("delete", self._path(key), changes=True):
            if self._unlink(key, names, if_version):
                with after_the_effect("delete", self._path(key)):
                    self._remove_empty(names[:-1])

    def delete_many(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """Unlink all files, then make each folder durable once; see `Store.delete_many`."""
        failures: list[DeleteFailure] = []
        emptied: set[tuple[str, ...]] = set()
        for key in keys:
            try:
                names = self._names(key)
                with translated("delete", self._path(key), changes=True):
                    if self._unlink(key, names, None):
                        emptied.add(tuple(names[:-1]))
            except NotAppliedError as refusal:
                failures.append(DeleteFailure(key=key, reason=str(refusal)))
        for folder in sorted(emptied, reverse=True):
            with after_the_effect("delete", self._path("/".join(folder))):
                self._remove_empty(folder)
        return failures

    def begin_upload(
        self,
        key: str,
        token: Token,  # noqa: ARG002
        *,
        content_type: str | None = None,  # noqa: ARG002
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002
        copy_of: str | None = None,  # noqa: ARG002
    ) -> str:
        """Create a hidden file; token, type and metadata are not stored; see `Store.begin_upload`."""
        names = self._names(key)
        with translated("begin upload", self._path(key), changes=True):
            return pending_uploads.begin(self._tree, names)

    def put_part(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> Part:
        """Write to the part's offset; see `Store.put_part`."""
        if not 1 <= number <= self.capabilities.max_parts or offset < 0:
            raise InvalidInputError(
                f"put part {number} at {offset} of {key!r}: "
                f"numbers go from 1 to {self.capabilities.max_parts}, offsets from 0"
            )
        names = self._names(key)
        with translated("put part", self._path(key), changes=True):
            return pending_uploads.write_part(self._tree, names, upload_id, (number, offset), data)

    def copy_part(
        self, key: str, upload_id: str, number: int, offset: int, *, source: str, start: int, length: int
    ) -> Part:
        """Read the bytes and write them; see `Store.copy_part`."""
        data = self.get(source, start=start, length=length)
        return self.put_part(key, upload_id, number, offset, data)

    def seal_upload(self, key: str, upload_id: str, token: Token, parts: Sequence[Part]) -> PendingUpload:
        """Make the hidden file durable; see `Store.seal_upload`."""
        names = self._names(key)
        with translated("seal upload", self._path(key), changes=True):
            return pending_uploads.seal(self._tree, names, upload_id, token, parts)

    def complete_upload(self, pending: PendingUpload, *, if_absent: bool = False) -> ObjectInfo:
        """Link the hidden file to its key; see `Store.complete_upload`."""
        names, path = self._names(pending.key), self._path(pending.key)
        with translated("complete upload", path, changes=True):
            try:
                return self._complete(names, pending, if_absent=if_absent)
            except UploadGoneError:
                if not self._is_held(names, pending):
                    raise
                return object_info(pending.key, self._status(names))

    def completion_sender(self) -> None:
        """Return none: a call to a file system waits; see `Store.completion_sender`."""

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Delete the hidden file; see `Store.abort_upload`."""
        names = self._listed_names(key)
        # The lock excludes a completion that replaces an object: after the abort has returned, the upload
        # cannot become visible any more.
        with translated("abort upload", self._path(key), changes=True), locked(self._tree, key):
            pending_uploads.drop(self._tree, names, upload_id)

    def holds(self, pending: PendingUpload) -> bool:
        """Compare inode, time and size with the seal; see `Store.holds`."""
        names = self._names(pending.key)
        with translated("read back", self._path(pending.key), changes=False):
            return self._is_held(names, pending)

    def upload_bytes(self, key: str, upload_id: str) -> int:
        """Return the hidden file's size; see `Store.upload_bytes`."""
        names = self._listed_names(key)
        with translated("measure upload", self._path(key), changes=False):
            return pending_uploads.written_bytes(self._tree, names, upload_id)

    def upload_pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[UploadInfo]]:
        """Walk the hidden files in key order; see `Store.upload_pages`."""
        with translated("list uploads", self._path(prefix), changes=False), suppress(FileNotFoundError):
            self._drop_abandoned()
            found = pending_uploads.still_open(self._tree, prefix)
            yield from in_pages((upload for upload in found if upload.key > after), page_size)

    def adopt_file(self, local: Path, key: str, token: Token) -> PendingUpload:
        """Link the file to the hidden name of a new upload; see `FileTree.adopt_file`."""
        names = self._names(key)
        with translated(f"adopt {local} as", self._path(key), changes=True):
            return pending_uploads.adopt(self._tree, names, local, token)

    def present(self, folder: str, names: Sequence[str]) -> list[str]:
        """Read the status of every name; see `FileTree.present`."""
        with translated("look for names in", self._path(folder), changes=False):
            return list(present(self._tree, self._names(folder), names))

    def obstacles(self, keys: Sequence[str]) -> list[Obstacle]:
        """Read the status of every key and of its folders; see `FileTree.obstacles`."""
        for key in keys:
            self._names(key)
        with translated("look for obstacles in", self.url, changes=False):
            return list(obstacles(self.root, keys))

    def _names(self, key: str) -> list[str]:
        return self._listed_names(check_key(key))

    def _listed_names(self, key: str) -> list[str]:
        """Return the names of a key from a listing, which may be one that no job could write."""
        if is_hidden(check_listed_key(key)):
            raise InvalidInputError(
                f"key {key[:80]!r}: is in a folder for hidden pending data; choose another name"
            )
        return key.split("/")

    def _path(self, key: str) -> str:
        return f"{self.url}/{printable(key)}"

    @contextmanager
    def _reading(self, call: str, key: str) -> Iterator[None]:
        with translated(call, self._path(key), changes=False):
            try:
                yield
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectNotFoundError(f"{call} {self._path(key)}: there is no such object") from None

    @contextmanager
    def _temporary_file(self, data: bytes) -> Iterator[_TemporaryFile]:
        with self._tree.folder(TEMPORARY, make=True) as folder:
            name = new_token()
            try:
                file = os.open(name, _CREATE, 0o666, dir_fd=folder)
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(file, rest) :]
                    os.fsync(file)
                    status = os.fstat(file)
                finally:
                    os.close(file)
                yield _TemporaryFile(folder, name, status)
            finally:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)

    def _drop_abandoned(self) -> None:
        """Delete temporary files and locks of crashed writers: no live writer needs a day.

        A link to an upload is as old as its data; the last change of its inode is when it was made. After a
        clock's jump by a day, a call may lose the file that it is writing: it fails and changes nothing.
        """
        with suppress(OSError), self._tree.folder(TEMPORARY) as folder:
            for name in os.listdir(folder):  # noqa: PTH208 - pathlib cannot list an open folder
                if os.lstat(name, dir_fd=folder).st_ctime < time.time() - _ABANDONED_S:
                    os.unlink(name, dir_fd=folder)
        drop_abandoned(self._tree, older_than_s=_ABANDONED_S)

    def _complete(self, names: Sequence[str], pending: PendingUpload, *, if_absent: bool) -> ObjectInfo:
        with suppress(NoHardLinksError):
            done = pending_uploads.complete(self._tree, names, pending)
            if done is not None:
                return done
        self._refuse_directory(names)
        with locked(self._tree, pending.key):
            if if_absent and self._version(names) is not None:
                raise pending_uploads.already_there(self._path(pending.key))
            return pending_uploads.complete_over(self._tree, names, pending)

    def _is_held(self, names: Sequence[str], pending: PendingUpload) -> bool:
        return self._version(names) == pending.seal

    def _unlink(self, key: str, names: Sequence[str], if_version: str | None) -> bool:
        if self._version(names) is None:
            return False
        with locked(self._tree, key):
            version = self._version(names)
            if if_version is not None and version not in {None, if_version}:
                raise _other_version("delete", self._path(key), if_version)
            with suppress(FileNotFoundError, NotADirectoryError), self._tree.folder(names[:-1]) as folder:
                os.unlink(names[-1], dir_fd=folder)
                return True
        return False

    def _remove_empty(self, folder: Sequence[str]) -> None:
        self._tree.remove_empty(folder, keep=1 if folder and folder[0] == UPLOADS[0] else 0)

    def _status(self, names: Sequence[str]) -> os.stat_result:
        with self._tree.folder(names[:-1]) as folder:
            self._tree.refuse_other_case(folder, names[-1])
            status = os.lstat(names[-1], dir_fd=folder)
        if stat.S_ISDIR(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a file")
        return status

    def _version(self, names: Sequence[str]) -> str | None:
        try:
            return version_of(self._status(names))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _refuse_directory(self, names: Sequence[str]) -> None:
        # A concurrent delete may have removed it: then it was not a directory that has to be reported.
        with suppress(FileNotFoundError), self._tree.folder(names[:-1]) as folder:
            if stat.S_ISDIR(os.lstat(names[-1], dir_fd=folder).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _read(file: int, start: int, length: int | None) -> bytes:
    available = os.fstat(file).st_size - start
    # pread allocates the requested length, and the maximum length of a record is a thousand times its size.
    left = available if length is None else min(length, available)
    chunks: list[bytes] = []
    while left > 0:
        chunk = os.pread(file, left, start)
        if not chunk:
            break
        chunks.append(chunk)
        start, left = start + len(chunk), left - len(chunk)
    return b"".join(chunks)


def _other_version(call: str, path: str, expected: str) -> PreconditionFailedError:
    return PreconditionFailedError(
        f"{call} {path}: there is no object with version {expected}; nothing was changed; read it and decide "
        "again"
    )
