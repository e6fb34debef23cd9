"""Give a file name, group and ACL of its place, also without hard links and where an answer is repeated.

NFS repeats a request whose answer was lost. If it was done the first time, the second answer says that the
new name exists (a link), or that the old one does not (a rename): the names are read before it is believed.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from contextlib import suppress
from typing import Final

_NO_HARD_LINKS: Final = frozenset({errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM})
"""What SMB, FAT and FUSE answer: for a file of one's own, EPERM has no other reason."""


_ACL_HEAD: Final = 4
_ACL_ENTRY: Final = struct.Struct("<HHI")
"""Whom an entry of a POSIX ACL is for, its bits, and the id: behind a version, as Linux stores them."""
_OWNER, _GROUP, _MASK, _OTHERS = 0x01, 0x04, 0x10, 0x20


class NoHardLinksError(OSError):
    """The file system has no hard links; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def link(source: int, name: str, folder: int, new: str) -> None:
    """Give a file of this user a second name, and the group and ACL of its place.

    Args:
        source: Open folder of the file.
        name: Name of it there.
        folder: Open folder of the second name.
        new: The second name.

    Raises:
        FileExistsError: The second name is another file's.
        NoHardLinksError: The file system has no hard links.
    """
    _make_native(source, name, folder)
    try:
        os.link(name, new, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        if not os.path.samestat(os.lstat(new, dir_fd=folder), os.lstat(name, dir_fd=source)):
            raise
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise NoHardLinksError from error
        raise


def rename(source: int, name: str, folder: int, new: str) -> None:
    """Rename a file, give it the group and ACL of its place, and replace a file that has the new name.

    Raises:
        FileNotFoundError: It was not there, or the folder is gone.
    """
    _make_native(source, name, folder)
    status = os.lstat(name, dir_fd=source)
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=folder)
    except FileNotFoundError:
        if not is_at(folder, new, status):
            raise


def is_at(folder: int, name: str, status: os.stat_result) -> bool:
    """Return whether a name in an open folder is the file with this status."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.lstat(name, dir_fd=folder), status)
    return False


def group_in(folder: int) -> int | None:
    """Return the group that every file gets that is created in an open folder; None: its writer's."""
    status = os.fstat(folder)
    return status.st_gid if status.st_mode & stat.S_ISGID or sys.platform == "darwin" else None


def give_to_group(folder: int, name: str, group: int) -> None:
    """Give a file to a group, unless it is another user's or this user is not a member."""
    if os.lstat(name, dir_fd=folder).st_gid != group:
        with suppress(PermissionError):
            os.chown(name, -1, group, dir_fd=folder, follow_symlinks=False)


def _make_native(source: int, name: str, folder: int) -> None:
    """Give a file the group and the ACL of one that is created in an open folder, if it is this user's."""
    group, acl = group_in(folder), _acl_in(folder)
    if group is not None:
        give_to_group(source, name, group)
    if acl is not None:
        with suppress(PermissionError):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
            try:
                os.setxattr(file, "system.posix_acl_access", acl)
            finally:
                os.close(file)


def _acl_in(folder: int) -> bytes | None:
    """Return the ACL of a file that is created in an open folder; None: the folder has no default ACL."""
    if sys.platform != "linux":
        return None
    try:
        acl = os.getxattr(folder, "system.posix_acl_default")
    except OSError:  # it has none, or the file system knows none
        return None
    entries = list(_ACL_ENTRY.iter_unpack(acl[_ACL_HEAD:]))
    cut = {_OWNER, _MASK if any(tag == _MASK for tag, *_ in entries) else _GROUP, _OTHERS}
    # A new file has no right of execution, as with the mode 0666.
    packed = (_ACL_ENTRY.pack(tag, bits & 6 if tag in cut else bits, who) for tag, bits, who in entries)
    return acl[:_ACL_HEAD] + b"".join(packed)
