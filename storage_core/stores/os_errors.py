"""What the operating system's refusals mean to a caller: one error of ours for each."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lockgate.storage_core.errors import (
    AccessDeniedError,
    InvalidInputError,
    LockgateError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
)

_REFUSALS: Final[dict[int, tuple[type[LockgateError], str]]] = {
    errno.ENOENT: (ObjectNotFoundError, "there is no such file; check the key"),
    errno.EACCES: (AccessDeniedError, "give this user permission to read and write the destination"),
    errno.EPERM: (AccessDeniedError, "give this user permission to read and write the destination"),
    errno.EROFS: (
        AccessDeniedError,
        "the file system is read-only; remount it or choose another destination",
    ),
    errno.ENOTDIR: (InvalidInputError, "a parent of it is a file; choose another name or remove that file"),
    errno.EISDIR: (InvalidInputError, "it is a directory; choose another name or remove the directory"),
    errno.ENAMETOOLONG: (InvalidInputError, "one of its names is too long for this file system; shorten it"),
    errno.ELOOP: (
        InvalidInputError,
        "it is or crosses a symbolic link; replace the link by what it points to",
    ),
    errno.EXDEV: (
        UnsupportedStoreError,
        "another file system is mounted below the destination; make that one the destination",
    ),
    errno.EOPNOTSUPP: (UnsupportedStoreError, "the file system lacks hard links or locks; choose another"),
    errno.ENOSPC: (StoreUnavailableError, "the file system is full; free space, then try again"),
    errno.EDQUOT: (StoreUnavailableError, "this user's quota is used up; free space, then try again"),
}
_NO_ANSWER: Final = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT})
"""After these nobody can tell what reached the disk."""


@contextmanager
def translated(call: str, path: str, *, changes: bool) -> Iterator[None]:
    """Turn every `OSError` within into the error that says what clean-up may do.

    Args:
        call: What the store was asked to do.
        path: The root and the key, for the message.
        changes: Whether the call changes anything: only then can its outcome be unknown.
    """
    try:
        yield
    except OSError as fault:
        raise _meaning(call, path, fault, changes=changes) from fault


@contextmanager
def after_the_effect(call: str, path: str) -> Iterator[None]:
    """Turn every `OSError` within into `OutcomeUnknownError`: the change shows, perhaps not for good."""
    try:
        yield
    except OSError as fault:
        raise _no_answer(call, path, fault) from fault


def _meaning(call: str, path: str, fault: OSError, *, changes: bool) -> LockgateError:
    number = fault.errno or 0
    if changes and number in _NO_ANSWER:
        return _no_answer(call, path, fault)
    kind, remedy = _REFUSALS.get(number, (StoreUnavailableError, "see the system's log, then try again"))
    effect = "; nothing was changed" if changes else ""
    return kind(f"{call} {path}: {_reason(fault)}{effect}; {remedy}")


def _no_answer(call: str, path: str, fault: OSError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{call} {path}: {_reason(fault)}; the change may or may not outlive a crash; "
        "nothing was deleted; check the disk, then let recovery read it back"
    )


def _reason(fault: OSError) -> str:
    return os.strerror(fault.errno) if fault.errno else str(fault)
