"""Translate `OSError` to the matching `LockgateError`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from lockgate.storage_core.errors import (
    AccessDeniedError,
    FileBusyError,
    InvalidInputError,
    LockgateError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
)

_LACKING: Final = (
    UnsupportedStoreError,
    "the file system lacks hard links or locks; a journal decides in their place (LOCKGATE_JOURNAL_URL), or "
    "choose another",
)
_REFUSALS: Final[dict[int, tuple[type[LockgateError], str]]] = {
    errno.ENOENT: (ObjectNotFoundError, "there is no such file; check the key"),
    errno.EACCES: (AccessDeniedError, "give this user permission to read and write the destination"),
    errno.EPERM: (AccessDeniedError, "give this user permission to read and write the destination"),
    errno.EROFS: (
        AccessDeniedError,
        "the file system is read-only; remount it, or choose another place",
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
    **dict.fromkeys((errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK), _LACKING),
    errno.EBUSY: (FileBusyError, "another program uses it; close it there, then try again"),
    errno.ETXTBSY: (FileBusyError, "another program runs it; end that, then try again"),
    errno.ENOSPC: (StoreUnavailableError, "the file system is full; free space, then try again"),
    errno.EDQUOT: (StoreUnavailableError, "this user's quota is used up; free space, then try again"),
}
_UNKNOWN_OUTCOME: Final = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT})
"""After these errors the state on the disk is unknown."""


class translated:  # noqa: N801 - as `contextlib.suppress`
    """Translate each `OSError` of the system within. No generator, which costs 2 µs more: an append takes 15.

    One without a number passes: it is a signal handler's, such as the `TimeoutError` of a time limit.

    Args:
        call: Name of the call, for the message.
        path: Root and key, for the message.
        changes: Whether the call changes anything: only then can its outcome be unknown.
    """

    __slots__ = ("_call", "_changes", "_path")

    def __init__(self, call: str, path: str, *, changes: bool) -> None:
        self._call = call
        self._path = path
        self._changes = changes

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            raise _translate(self._call, self._path, error, changes=self._changes) from error


@contextmanager
def after_the_effect(call: str, path: str) -> Iterator[None]:
    """Raise `OutcomeUnknownError` for every `OSError` within: the change is visible, perhaps not durable."""
    try:
        yield
    except OSError as error:
        raise _outcome_unknown(call, path, error) from error


def _translate(call: str, path: str, error: OSError, *, changes: bool) -> LockgateError:
    number = error.errno or 0
    if changes and number in _UNKNOWN_OUTCOME:
        return _outcome_unknown(call, path, error)
    kind, remedy = _REFUSALS.get(number, (StoreUnavailableError, "see the system's log, then try again"))
    effect = "; nothing was changed" if changes else ""
    return kind(f"{call} {path}: {_reason(error)}{effect}; {remedy}")


def _outcome_unknown(call: str, path: str, error: OSError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{call} {path}: {_reason(error)}; the change may or may not survive a crash; "
        "nothing was deleted; check the disk, then let recovery read it back"
    )


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
