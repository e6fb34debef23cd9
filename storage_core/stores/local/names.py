"""Give a file the name and the group of its place, also without hard links and where an answer is repeated.

NFS repeats a request whose answer was lost. If it was done the first time, the second answer says that the
new name exists (a link), or that the old one does not (a rename): the names are read before it is believed.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from typing import Final

_NO_HARD_LINKS: Final = frozenset({errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM})
"""What SMB, FAT and FUSE answer: for a file of one's own, EPERM has no other reason."""


class NoHardLinksError(OSError):
    """The file system has no hard links; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def link(source: int, name: str, folder: int, new: str) -> None:
    """Give a file of this user a second name, and the group of its place.

    Args:
        source: Open folder of the file.
        name: Name of it there.
        folder: Open folder of the second name.
        new: The second name.

    Raises:
        FileExistsError: The second name is another file's.
        NoHardLinksError: The file system has no hard links.
    """
    _give_group(source, name, folder)
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
    """Rename a file, give it the group of its place, and replace a file that has the new name.

    Raises:
        FileNotFoundError: It was not there, or the folder is gone.
    """
    _give_group(source, name, folder)
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


def _give_group(source: int, name: str, folder: int) -> None:
    group = group_in(folder)
    if group is not None:
        give_to_group(source, name, group)
