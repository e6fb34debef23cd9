"""Pending uploads on a file system: one hidden file each, linked to its key at completion.

The hidden file is `_lockgate/uploads/<key>/~<upload id>`; completion never copies it. A finished file on the
same file system is adopted by a hard link to the hidden name. A crash between the link to the key and the
removal of the hidden name leaves two names of one file: the upload is complete, and the next listing of
uploads removes the hidden name. Without hard links, or over another file, the hidden file is renamed.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import AlreadyExistsError, InvalidInputError, UploadGoneError
from lockgate.storage_core.ids import Token, new_token
from lockgate.storage_core.stores.local.listing import UPLOADS, object_info, uploads, version_of
from lockgate.storage_core.stores.local.names import give_to_group, group_in, is_at, link, rename
from lockgate.storage_core.stores.local.rooted_dir import RootedDir
from lockgate.storage_core.stores.os_errors import after_the_effect
from lockgate.storage_core.stores.protocol import ObjectInfo, Part, PendingUpload, UploadInfo, check_parts

_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_UPLOAD_ID: Final = re.compile(r"[0-9a-f]{32}")
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def begin(tree: RootedDir, names: Sequence[str]) -> str:
    """Create the hidden file of a new upload; return the upload's id."""
    upload_id = new_token()

    def create(folder: int) -> None:
        os.close(os.open(_hidden_name(upload_id), _CREATE, 0o666, dir_fd=folder))

    tree.within([*UPLOADS, *names], create)
    return upload_id


def adopt(tree: RootedDir, names: Sequence[str], local: Path, token: Token) -> PendingUpload:
    """Link a finished file to the hidden name of a new upload; see `FileTree.adopt_file`."""
    upload_id = new_token()
    key = "/".join(names)
    with _finished_file(local) as status:

        def link(folder: int) -> None:
            with suppress(FileExistsError):  # it was done at the first try: no other file has this name
                os.link(local, _hidden_name(upload_id), dst_dir_fd=folder, follow_symlinks=False)
            if not os.path.samestat(os.lstat(_hidden_name(upload_id), dir_fd=folder), status):
                os.unlink(_hidden_name(upload_id), dir_fd=folder)
                raise _not_adopted(local, "it was replaced meanwhile")
            if not status.st_mode & _OF_OTHERS:
                # A staged file is private; it becomes visible with the mode of this process's other files.
                with suppress(PermissionError):
                    os.chmod(_hidden_name(upload_id), 0o666 & ~_umask(), dir_fd=folder)
            group = group_in(folder)
            give_to_group(folder, _hidden_name(upload_id), os.getegid() if group is None else group)
            os.fsync(folder)

        tree.within([*UPLOADS, *names], link)
    version = version_of(status)
    part = Part(number=1, size=status.st_size, etag=version)
    return PendingUpload(
        key=key, upload_id=upload_id, token=token, size=status.st_size, parts=(part,), seal=version
    )


def _umask() -> int:
    with suppress(OSError):  # elsewhere than on Linux
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def write_part(
    tree: RootedDir, names: Sequence[str], upload_id: str, part: tuple[int, int], data: bytes
) -> Part:
    """Write one part (number, offset in bytes) to the hidden file."""
    number, offset = part
    with _hidden_file(tree, names, upload_id) as file:
        rest, position = memoryview(data), offset
        while rest:
            written = os.pwrite(file, rest, position)
            rest, position = rest[written:], position + written
    checksum = zlib.crc32(data).to_bytes(4, "big")
    return Part(
        number=number, size=len(data), etag=checksum.hex(), checksum=base64.b64encode(checksum).decode()
    )


def written_bytes(tree: RootedDir, names: Sequence[str], upload_id: str) -> int:
    """Return the current size of the hidden file."""
    with _hidden_file(tree, names, upload_id) as file:
        return os.fstat(file).st_size


def seal(
    tree: RootedDir, names: Sequence[str], upload_id: str, token: Token, parts: Sequence[Part]
) -> PendingUpload:
    """Make the hidden file durable, and return the record that completes it."""
    key = "/".join(names)
    ordered = check_parts(key, parts)
    size = sum(part.size for part in ordered)
    with _hidden_file(tree, names, upload_id) as file:
        if os.fstat(file).st_size < size:
            raise InvalidInputError(
                f"seal upload {upload_id} of {key!r}: its parts claim {size} bytes, fewer were written; "
                "nothing was changed; write the missing parts, or abort it"
            )
        # A last part that was replaced by a shorter one leaves bytes behind it.
        os.ftruncate(file, size)
        os.fsync(file)
        status = os.fstat(file)
    with tree.folder([*UPLOADS, *names]) as folder:
        os.fsync(folder)
    return PendingUpload(
        key=key, upload_id=upload_id, token=token, size=size, parts=ordered, seal=version_of(status)
    )


def complete(tree: RootedDir, names: Sequence[str], pending: PendingUpload) -> ObjectInfo | None:
    """Link the hidden file to its key if there is no file.

    Returns:
        The object, or None if there is another file; then the upload stays open.

    Raises:
        NoHardLinksError: The file system has none; the upload stays open.
        UploadGoneError: The hidden file is gone, or was written to after it was sealed.
    """
    try:
        return _named(tree, names, pending, link)
    except FileExistsError:
        return None


def complete_over(tree: RootedDir, names: Sequence[str], pending: PendingUpload) -> ObjectInfo:
    """Rename the hidden file to its key, also over another file; the caller holds the key's lock."""
    return _named(tree, names, pending, rename)


def _named(
    tree: RootedDir,
    names: Sequence[str],
    pending: PendingUpload,
    give: Callable[[int, str, int, str], None],
) -> ObjectInfo:
    """Give a hidden file the name of its key, and remove what is hidden."""
    name, hidden = names[-1], _hidden_name(pending.upload_id)
    with _sealed(tree, names, pending) as (source, status):

        def act(folder: int) -> None:
            tree.refuse_other_case(folder, name)
            try:
                give(source, hidden, folder, name)
            except FileNotFoundError:
                if is_at(source, hidden, status):
                    raise  # the folder has just been removed
                raise _gone(pending.key, pending.upload_id) from None
            with after_the_effect("complete upload", pending.key):
                os.fsync(folder)

        tree.within(names[:-1], act)
    drop(tree, names, pending.upload_id)
    return object_info(pending.key, status)


def drop(tree: RootedDir, names: Sequence[str], upload_id: str) -> None:
    """Delete a hidden file if it exists, and the folders that become empty."""
    if not _UPLOAD_ID.fullmatch(upload_id):
        return
    folders = [*UPLOADS, *names]
    with suppress(FileNotFoundError, NotADirectoryError):
        with tree.folder(folders) as hidden, suppress(FileNotFoundError):
            os.unlink(_hidden_name(upload_id), dir_fd=hidden)
        tree.remove_empty(folders, keep=len(UPLOADS))


def still_open(tree: RootedDir, prefix: str) -> Iterator[UploadInfo]:
    """Yield the open uploads, and finish completions that a crash interrupted."""
    for upload, status in uploads(tree, prefix):
        names = upload.key.split("/")
        if status.st_nlink > 1 and _is_at_its_key(tree, names, status):
            with suppress(OSError):
                drop(tree, names, upload.upload_id)
        else:
            yield upload


def _is_at_its_key(tree: RootedDir, names: Sequence[str], status: os.stat_result) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError), tree.folder(names[:-1]) as folder:
        return is_at(folder, names[-1], status)
    return False


def _hidden_name(upload_id: str) -> str:
    return f"~{upload_id}"


@contextmanager
def _hidden_folder(tree: RootedDir, names: Sequence[str], upload_id: str) -> Iterator[int]:
    """Open the folder of an existing hidden file.

    Raises:
        UploadGoneError: The file does not exist, or `begin` never returns such an id.
    """
    with ExitStack() as stack:
        try:
            if not _UPLOAD_ID.fullmatch(upload_id):
                raise FileNotFoundError
            folder = stack.enter_context(tree.folder([*UPLOADS, *names]))
            os.lstat(_hidden_name(upload_id), dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            raise _gone("/".join(names), upload_id) from None
        yield folder


@contextmanager
def _finished_file(local: Path) -> Iterator[os.stat_result]:
    """Make a regular file durable, and yield its status."""
    file = os.open(local, _READ)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _not_adopted(local, "it is not a regular file")
        os.fsync(file)
        yield status
    finally:
        os.close(file)


def _not_adopted(local: Path, reason: str) -> InvalidInputError:
    return InvalidInputError(f"adopt {local}: {reason}; nothing was changed; name a finished file")


@contextmanager
def _hidden_file(tree: RootedDir, names: Sequence[str], upload_id: str) -> Iterator[int]:
    with _hidden_folder(tree, names, upload_id) as folder:
        try:
            file = os.open(_hidden_name(upload_id), _WRITE, dir_fd=folder)
        except FileNotFoundError:
            raise _gone("/".join(names), upload_id) from None
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _sealed(
    tree: RootedDir, names: Sequence[str], pending: PendingUpload
) -> Iterator[tuple[int, os.stat_result]]:
    """Yield the open folder and the status of a hidden file that is unchanged since it was sealed."""
    with _hidden_folder(tree, names, pending.upload_id) as folder:
        try:
            status = os.lstat(_hidden_name(pending.upload_id), dir_fd=folder)
        except FileNotFoundError:
            raise _gone(pending.key, pending.upload_id) from None
        if version_of(status) != pending.seal:
            raise UploadGoneError(
                f"complete upload {pending.upload_id} of {pending.key!r}: it was written to after it was "
                "sealed; nothing was changed; abort it and run its task again"
            )
        yield folder, status


def _gone(key: str, upload_id: str) -> UploadGoneError:
    return UploadGoneError(
        f"upload {upload_id[:40]!r} of {key!r} is not open: it was completed, aborted or never begun; "
        "nothing was changed; read the object to learn which"
    )


def already_there(path: str) -> AlreadyExistsError:
    """Return the error of a conditional creation for a key that has an object."""
    return AlreadyExistsError(
        f"create {path}: there is an object already; it was not changed; read it to find out whose it is"
    )
