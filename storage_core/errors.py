"""What can go wrong, by what clean-up may do about it.

    LockgateError
    ├── NotAppliedError            the call had no effect: the caller may clean up or try again
    │   ├── InvalidInputError        an option, a path or a destination that cannot be right
    │   │   ├── MissingPartError       Java, a package or a program that the work needs is not there
    │   │   └── JournalVersionError    the journal's database is of a version that this program does not know
    │   ├── MalformedRecordError     bytes read back from a store that are not the record they should be
    │   │   ├── MalformedLogError      the same of the destination's log: no job is to blame
    │   │   ├── MalformedJournalError  the same of the journal, or of a snapshot of it
    │   │   └── CorruptBlobError       a blob's bytes do not hash to its key
    │   ├── ObjectNotFoundError      no object, bucket or job under this name
    │   │   └── ArtefactsGoneError     what a job was to be set up with is not there for it any more
    │   ├── AlreadyExistsError       create-if-absent met an object
    │   ├── PreconditionFailedError  the object is not the version that the call named
    │   ├── UploadGoneError          the pending upload was completed, aborted or never begun
    │   ├── AccessDeniedError        no credentials, or credentials without this permission
    │   ├── StoreUnavailableError    the store refused for now: throttled, or not reachable
    │   ├── UnsupportedStoreError    the store lacks what the work needs
    │   ├── ConflictError            the destination, or the job, is not in a state that allows this
    │   │   └── LeaseHeldError         another holder has the lease, and it has not lapsed
    │   ├── TurnBusyError            a live job holds the turn to commit: the one that waited may try again
    │   ├── JournalUnavailableError  the journal cannot be reached, or is locked: trying again later is safe
    │   ├── StaleRequestError        a request so old that nobody knows whether it was applied
    │   ├── SafeModeError            the journal was restored: nothing is reaped or deleted yet
    │   ├── StateLostError           what the caller has seen did not survive a failover or a restore
    │   └── AuditFailedError         the gate before the commit is closed
    ├── OutcomeUnknownError        no answer: delete nothing, abort nothing, hand it to recovery
    ├── FencedError                someone newer owns this: stop at once
    └── JobFailedError             the job was decided and ended without publishing: aborted or reverted

A message says who, which call, its effect, and the next step.
"""

from __future__ import annotations

from typing import ClassVar


class LockgateError(Exception):
    """Base of every error that Lockgate raises on purpose.

    Attributes:
        exit_code: What the command line exits with; documented in `docs/reference/command-line.md`.
    """

    exit_code: ClassVar[int] = 1


class NotAppliedError(LockgateError):
    """The call had no effect; the caller may clean up or try again."""


class InvalidInputError(NotAppliedError):
    """An option, a path or a destination that cannot be right; the message names it and the remedy."""

    exit_code = 2


class MissingPartError(InvalidInputError):
    """A program or package that the work needs is not on this machine; the message says how to get it."""


class MalformedRecordError(NotAppliedError):
    """Bytes read back from a store are not the record they should be; nothing was done on their word."""

    exit_code = 3


class MalformedLogError(MalformedRecordError):
    """The destination's log cannot be read: no job commits there until it is mended, and none is aborted."""


class MalformedJournalError(MalformedRecordError):
    """The journal, or a snapshot of it, contradicts itself, or is another's; nothing was changed."""


class CorruptBlobError(MalformedRecordError):
    """A blob's bytes do not hash to its key; whoever asked was given none of them."""


class JournalVersionError(InvalidInputError):
    """The journal's database is of another version than this program's; nothing was changed."""


class ObjectNotFoundError(NotAppliedError):
    """No object, bucket or job under this name."""

    exit_code = 4


class ArtefactsGoneError(ObjectNotFoundError):
    """What a job was to be set up with is not there for it any more: upload it again, for a new set-up."""


class AlreadyExistsError(NotAppliedError):
    """Create-if-absent met an object.

    It may be the caller's own: a request that was retried collides with its first try. Read the object
    back and compare its owner token before concluding anything.
    """


class PreconditionFailedError(NotAppliedError):
    """The object is not the version that the call named; it was left as it is."""


class UploadGoneError(NotAppliedError):
    """The pending upload was completed, aborted or never begun; read the object to learn which."""


class AccessDeniedError(NotAppliedError):
    """There are no credentials, or they lack this permission."""

    exit_code = 5


class StoreUnavailableError(NotAppliedError):
    """The store refused for now: throttled or not reachable. Trying again later is safe."""

    exit_code = 6


class UnsupportedStoreError(NotAppliedError):
    """The store lacks a capability that the work needs, such as conditional create."""

    exit_code = 7


class ConflictError(NotAppliedError):
    """The destination, or the job, is not in a state that allows this."""

    exit_code = 8


class TurnBusyError(NotAppliedError):
    """A live job held the turn to commit for too long; the job that waited is undecided and may try again."""

    exit_code = 6


class LeaseHeldError(ConflictError):
    """Another holder has the lease and lives, or is parked; nothing was changed."""


class JournalUnavailableError(NotAppliedError):
    """The journal cannot be reached, is locked or cannot be written; trying again later is safe."""

    exit_code = 6


class StaleRequestError(NotAppliedError):
    """The request is older than the ids that are kept: nobody knows any more whether it was applied."""

    exit_code = 8


class SafeModeError(NotAppliedError):
    """The journal was restored: nothing is reaped or deleted until that is left."""

    exit_code = 13


class StateLostError(NotAppliedError):
    """What the caller has seen did not survive a failover or a restore; an explicit `msync` starts anew."""

    exit_code = 14


class AuditFailedError(NotAppliedError):
    """The audit found the data wrong, or its verdict is missing or of other data."""

    exit_code = 9


class OutcomeUnknownError(LockgateError):
    """The call got no answer: it may or may not have had its effect. Delete nothing; recovery settles it."""

    exit_code = 10


class FencedError(LockgateError):
    """A newer owner has taken over; this process must stop at once and change nothing more."""

    exit_code = 11


class JobFailedError(LockgateError):
    """The job was decided and ended without publishing anything: it was aborted or reverted."""

    exit_code = 12
