"""Create records that decide something: the first writer of a name wins, and every writer learns who it was.

A record is created if absent, and read back after a lost answer.
"""

from __future__ import annotations

from typing import Final

from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, R, decode, encode
from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    JournalUnavailableError,
    LockgateError,
    LockTimeoutError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StateLostError,
    StoreUnavailableError,
)
from lockgate.storage_core.retry import Retry
from lockgate.storage_core.stores import Store

CLAIM_TRIES: Final = 5
CREATE_TRIES: Final = 5


def read(store: Store, kind: type[R], key: str) -> R:
    """Read a record.

    Raises:
        ObjectNotFoundError: There is no such record.
        MalformedRecordError: The record is invalid.
    """
    # One byte over the limit is enough to refuse the record without reading the rest.
    return decode(kind, store.get(key, length=MAX_RECORD_BYTES + 1), key)


def find(store: Store, kind: type[R], key: str) -> R | None:
    """Read a record; return None if there is none."""
    try:
        return read(store, kind, key)
    except ObjectNotFoundError:
        return None


def create(store: Store, key: str, data: bytes) -> None:
    """Create an object if absent; retry with back-off while the store is busy.

    A refused call had no effect, so a retry cannot collide with an earlier try of this call.

    Raises:
        AlreadyExistsError: The object exists.
        StoreUnavailableError: The store was busy for too long; nothing was created.
        OutcomeUnknownError: The call got no answer; read the object back.
    """
    retry_while_busy().call(store.create, key, data)


def retry_while_busy(*also: type[LockgateError]) -> Retry:
    """Return a retry policy with back-off for calls that a busy store refuses.

    Args:
        also: Further errors after which the call may be retried.
    """
    return Retry(
        lambda error: (
            isinstance(error, (StoreUnavailableError, *also)) and not isinstance(error, LockTimeoutError)
        ),
        tries=CREATE_TRIES,
        pause_s=0.1,
        longest_pause_s=5,
    )


def claim(store: Store, key: str, record: R) -> R:
    """Create a record if absent and return the stored one: the caller's, or that of the first writer.

    A lost answer is resolved by reading back. Only the content shows whose record it is, so a claimed record
    carries an owner token or is the same from every writer.

    Raises:
        OutcomeUnknownError: The stored record is still unknown after several tries, or the read-back after a
            lost answer was refused.
    """
    lost: OutcomeUnknownError | None = None
    for _ in range(CLAIM_TRIES):
        try:
            create(store, key, encode(record))
        except AlreadyExistsError:
            pass
        except OutcomeUnknownError as error:
            lost = error
        except NotAppliedError as error:
            # This try had no effect, but an earlier one may have had one.
            raise _unknown(store, key, error) if lost else error from None
        else:
            return record
        try:
            stored = find(store, type(record), key)
        except (StoreUnavailableError, AccessDeniedError, JournalUnavailableError, StateLostError) as error:
            raise _unknown(store, key, error) if lost else error from None
        if stored is not None:
            return stored
        # The lost create had no effect, or has none yet: try again.
    because = f" ({lost})" if lost else ""
    raise OutcomeUnknownError(
        f"{store.url}/{key}: creating it was not confirmed in {CLAIM_TRIES} tries and it cannot be read back"
        f"{because}; nothing was deleted; try again"
    )


def _unknown(store: Store, key: str, error: NotAppliedError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{store.url}/{key}: creating it gave no answer, and reading it back was refused ({error}); it may "
        "exist; nothing was deleted; try again"
    )
