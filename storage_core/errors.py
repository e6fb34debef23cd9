"""Lockgate's errors. The type determines what a caller may clean up or retry.

    LockgateError
    ├── NotAppliedError            the call had no effect: the caller may clean up or retry
    │   ├── InvalidInputError
    │   │   ├── MissingPartError
    │   │   └── JournalVersionError
    │   ├── MalformedRecordError
    │   │   ├── MalformedLogError
    │   │   ├── MalformedJournalError
    │   │   └── CorruptBlobError
    │   ├── ObjectNotFoundError
    │   │   ├── ArtefactsGoneError
    │   │   └── DestinationNotFoundError
    │   ├── AlreadyExistsError
    │   ├── StaleReplicaError
    │   ├── PreconditionFailedError
    │   ├── UploadGoneError
    │   ├── AccessDeniedError
    │   ├── StoreUnavailableError
    │   ├── NoWorkerError
    │   ├── UnsupportedStoreError
    │   ├── ConflictError
    │   │   ├── LeaseHeldError
    │   │   ├── MountsChangedError
    │   │   └── NoTasksError
    │   ├── TurnBusyError
    │   ├── JournalUnavailableError
    │   ├── StaleRequestError
    │   ├── PathError              also an OSError with errno and filename, as pathlib raises
    │   │   ├── PathNotFoundError      and ObjectNotFoundError, FileNotFoundError
    │   │   ├── PathExistsError        and AlreadyExistsError, FileExistsError
    │   │   └── PathConflictError      and ConflictError
    │   │       ├── PathIsDirectoryError   and IsADirectoryError
    │   │       ├── PathNotDirectoryError  and NotADirectoryError
    │   │       ├── DirectoryNotEmptyError
    │   │       ├── OtherJournalPathError  errno EXDEV
    │   │       └── MountPointError        errno EBUSY
    │   ├── SafeModeError
    │   ├── StateLostError
    │   └── AuditFailedError
    ├── OutcomeUnknownError        no answer: delete nothing, abort nothing, leave it to recovery
    │   └── LockTimeoutError
    ├── FencedError                a newer owner has taken over: stop at once
    └── JobFailedError             the job was decided and ended without publishing: aborted or reverted

A message contains the job or object, the call, its effect, and the next step.
"""

from __future__ import annotations

import errno
import os
from typing import Any, ClassVar


class LockgateError(Exception):
    """Base class of all errors that Lockgate raises on purpose.

    Attributes:
        exit_code: Exit code of the command line; documented in `docs/reference/command-line.md`.
    """

    exit_code: ClassVar[int] = 1


class NotAppliedError(LockgateError):
    """The call had no effect; the caller may clean up or retry."""


class InvalidInputError(NotAppliedError):
    """An option, a path or a destination is invalid; the message contains it and the remedy."""

    exit_code = 2


class MissingPartError(InvalidInputError):
    """Java, a program or a package is not installed; the message contains how to install it."""


class MalformedRecordError(NotAppliedError):
    """Bytes read from a store are not the expected record; nothing was done based on them."""

    exit_code = 3


class RecordVersionError(MalformedRecordError):
    """A record has a version or a field that this program does not know; a newer Lockgate reads it."""


class MalformedLogError(MalformedRecordError):
    """The destination's log cannot be read; until it is repaired, no job there commits or is aborted."""


class MalformedJournalError(MalformedRecordError):
    """The journal or a snapshot of it is inconsistent, or is another journal's; nothing was changed."""


class CorruptBlobError(MalformedRecordError):
    """A blob's bytes do not hash to its key; the caller received none of them."""


class JournalVersionError(InvalidInputError):
    """The journal's database has a version that this program does not know; nothing was changed."""


class MessageVersionError(InvalidInputError):
    """A worker received a task with arguments that it does not know; the task was not begun."""


class ObjectNotFoundError(NotAppliedError):
    """There is no object, bucket or job with this name."""

    exit_code = 4


class ArtefactsGoneError(ObjectNotFoundError):
    """Artefacts of a job no longer exist; upload them again and set up a new job."""


class DestinationNotFoundError(ObjectNotFoundError):
    """No job was ever set up at this destination: its URL or path may have a typo; nothing was done."""

    exit_code = 15


class AlreadyExistsError(NotAppliedError):
    """A create-if-absent found an object.

    The object may be the caller's: a retried request collides with its first attempt. Read the object
    back and compare its owner token before concluding anything.
    """

    exit_code = 8


class StaleReplicaError(NotAppliedError):
    """A volume's replica has another stamp than the reader asked for; read another member's."""


class PreconditionFailedError(NotAppliedError):
    """The object does not have the expected version; it was not changed."""


class UploadGoneError(NotAppliedError):
    """The pending upload was completed, aborted or never begun; read the object to find out which."""


class AccessDeniedError(NotAppliedError):
    """There are no credentials, or they do not include this permission."""

    exit_code = 5


class StoreUnavailableError(NotAppliedError):
    """The store is throttling or not reachable; retrying later is safe."""

    exit_code = 6


class FileBusyError(StoreUnavailableError):
    """Another program uses the file; retrying when it has closed the file is safe."""


class NoWorkerError(NotAppliedError):
    """No Celery worker takes the tasks; they were withdrawn, and retrying when one runs is safe."""

    exit_code = 6


class UnsupportedStoreError(NotAppliedError):
    """The store lacks a required capability, such as conditional create."""

    exit_code = 7


class ConflictError(NotAppliedError):
    """The destination or the job is not in a state that allows this call."""

    exit_code = 8


class PathError(NotAppliedError, OSError):
    """A path of appendable files does not allow this call.

    Attributes:
        errno: As of the same call on a local file.
        filename: The path that it is about; None if a deleted file was found by its id.
    """

    exit_code = 1
    ERRNO: ClassVar[int] = errno.EINVAL

    def __init__(self, message: str, path: str | None = None) -> None:
        """Create the error; `message` is its text."""
        super().__init__(message)
        self.errno, self.strerror, self.filename = self.ERRNO, os.strerror(self.ERRNO), path

    def __str__(self) -> str:
        """Return the message; `OSError` would return its number and file name."""
        return str(self.args[0])

    def __reduce__(self) -> Any:
        """Keep the path in a copy."""
        return type(self), (str(self), self.filename)


class PathNotFoundError(PathError, ObjectNotFoundError, FileNotFoundError):
    """The path, or a directory of it, does not exist."""

    ERRNO = errno.ENOENT


class PathExistsError(PathError, AlreadyExistsError, FileExistsError):
    """The path names something already."""

    ERRNO = errno.EEXIST


class PathConflictError(PathError, ConflictError):
    """A directory cannot be moved into itself."""


class PathIsDirectoryError(PathConflictError, IsADirectoryError):
    """The path names a directory, and the call needs a file."""

    ERRNO = errno.EISDIR


class PathNotDirectoryError(PathConflictError, NotADirectoryError):
    """The path, or one above it, names a file, and the call needs a directory."""

    ERRNO = errno.ENOTDIR


class DirectoryNotEmptyError(PathConflictError):
    """The directory has names in it."""

    ERRNO = errno.ENOTEMPTY


class OtherJournalPathError(PathConflictError):
    """A rename would cross the border between two journals; copy and delete, as `mv` does between disks."""

    ERRNO = errno.EXDEV


class MountPointError(PathConflictError):
    """The directory is one at which a satellite is mounted, or above one."""

    ERRNO = errno.EBUSY


class MountsChangedError(ConflictError):
    """The mount table was changed after the caller has read it; read it again, and repeat the call."""


class NoTasksError(ConflictError):
    """No task of the job has committed; the job is undecided, and its driver may run again."""


class TurnBusyError(NotAppliedError):
    """A live job held the commit turn for too long; the waiting job is undecided and may retry."""

    exit_code = 6


class LeaseHeldError(ConflictError):
    """Another holder has the lease, live or suspended; nothing was changed."""


class JournalUnavailableError(NotAppliedError):
    """The journal cannot be reached, is locked or cannot be written; retrying later is safe."""

    exit_code = 6


class StaleRequestError(NotAppliedError):
    """The request is older than the retained request ids, so whether it was applied is unknown."""

    exit_code = 8


class SafeModeError(NotAppliedError):
    """The journal was restored: nothing is recovered or deleted until safe mode is left."""

    exit_code = 13


class StateLostError(NotAppliedError):
    """State that the caller has seen was lost.

    After a failover or a restore call `msync` to continue. If the database was replaced while this process
    had it open, start the process again.
    """

    exit_code = 14


class AuditFailedError(NotAppliedError):
    """The audit rejected the data, or its verdict is missing or belongs to other data."""

    exit_code = 9


class OutcomeUnknownError(LockgateError):
    """The call got no answer: it may or may not have been applied. Delete nothing; recovery resolves it."""

    exit_code = 10


class LockTimeoutError(OutcomeUnknownError):
    """Another process, perhaps a stopped one, has a file's lock; a second wait would take as long again."""


class FencedError(LockgateError):
    """A newer owner has taken over; this process must stop at once and make no more changes."""

    exit_code = 11


class JobFailedError(LockgateError):
    """The job was decided and ended without publishing: it was aborted or reverted."""

    exit_code = 12
