"""Errors as status and body of a response, and back."""

from __future__ import annotations

from typing import Final

import msgspec

from lockgate.storage_core import errors
from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    CorruptBlobError,
    FencedError,
    InvalidInputError,
    JournalUnavailableError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    SafeModeError,
    StoreUnavailableError,
)

_STATUS: Final[tuple[tuple[type[LockgateError], int], ...]] = (
    (InvalidInputError, 400),
    (AccessDeniedError, 403),
    (ObjectNotFoundError, 404),
    (ConflictError, 409),
    (FencedError, 409),
    (CorruptBlobError, 422),
    (SafeModeError, 423),
    (StoreUnavailableError, 503),
    (JournalUnavailableError, 503),
    (NotAppliedError, 409),
    (OutcomeUnknownError, 504),
)
_KINDS: Final[dict[str, type[LockgateError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, LockgateError)
}


class ErrorBody(msgspec.Struct, frozen=True):
    """Body of a response to a failed call.

    Attributes:
        error: Name of a class in `lockgate.storage_core.errors`.
        message: Message of the error.
    """

    error: str
    message: str


def status_of(error: LockgateError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def body_of(error: LockgateError) -> ErrorBody:
    """Return the body for an error, named after its nearest class that every client knows."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return ErrorBody(error=name, message=str(error))


def error_of(body: ErrorBody) -> LockgateError:
    """Return the error of a body; for a name that only a newer server knows, the outcome is unknown."""
    return _KINDS.get(body.error, OutcomeUnknownError)(body.message)
