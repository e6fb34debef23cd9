"""Complete one upload and settle the result: visible, permanently lost, or unknown."""

from __future__ import annotations

from typing import Final

from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import (
    AccessDeniedError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.stores import PendingUpload, Store

SETTLE_TRIES: Final = 5
NOT_ABOUT_THE_FILE: Final = (AccessDeniedError, UnsupportedStoreError, ObjectNotFoundError)
"""Refusals that an operator can fix (a permission, a bucket): the job stays decided, and no file is lost."""


def complete(
    store: Store, pending: PendingUpload, *, if_absent: bool, verify: bool, clock: Clock
) -> str | None:
    """Make one upload visible, with retries.

    Args:
        if_absent: Complete the upload only if its key has no object.
        verify: Read the object even after a success. If names are not unique, some stores answer 200 to the
            completion of an upload that is gone, because its key has another object.

    Returns:
        None if the object is visible; otherwise why it is permanently lost: its key has no object of this
        upload, *and* the upload is gone, or the store repeatedly and definitely refuses to complete it, or
        there is a folder with the key's name and the store repeatedly fails to complete it.

    Raises:
        OutcomeUnknownError: The result is still unknown after several tries.
    """
    error = _try(store, pending, if_absent=if_absent, verify=verify)
    if error is None:
        return None  # mostly so, without what the repetition costs
    for attempt in _until_settled(clock):
        with attempt:
            if attempt.retry_state.attempt_number > 1:
                error = _try(store, pending, if_absent=if_absent, verify=verify)
                if error is None:
                    return None
            is_last = attempt.retry_state.attempt_number == SETTLE_TRIES
            is_completed = _settle(store, pending, error, last=is_last)
            if is_completed is not None:
                return None if is_completed else f"there is no object of its upload: {error}"
    raise OutcomeUnknownError(
        f"{store.url}/{pending.key}: completing it was tried {SETTLE_TRIES} times; it is unknown whether "
        f"it is visible ({error}); nothing was deleted; run recovery for its job"
    )


def _try(store: Store, pending: PendingUpload, *, if_absent: bool, verify: bool) -> LockgateError | None:
    """Complete an upload once. Return what is to be settled; None if the object is visible."""
    try:
        store.complete_upload(pending, if_absent=if_absent)
    except NOT_ABOUT_THE_FILE:
        raise
    except (NotAppliedError, OutcomeUnknownError) as answer:
        return answer
    if not verify:
        return None
    return UploadGoneError(f"{store.url}/{pending.key}: completed, but the object is of another upload")


def _until_settled(clock: Clock) -> Retrying:
    """Return a retry policy with back-off. An exception ends the tries; running out of tries raises none."""
    return Retrying(
        sleep=clock.sleep,
        stop=stop_after_attempt(SETTLE_TRIES),
        wait=wait_exponential(multiplier=0.2),
        retry=retry_if_result(lambda _: True),
        retry_error_callback=lambda _: None,
    )


def _settle(store: Store, pending: PendingUpload, error: LockgateError, *, last: bool) -> bool | None:
    """Return True if the upload is completed, False if it is permanently lost, None if unknown."""
    try:
        definite = isinstance(error, NotAppliedError) and not isinstance(error, StoreUnavailableError)
        # Before `holds`: an upload that another process completes between the two is then held.
        may_be_completed = not last or not (
            definite or not is_open(store, pending) or _is_folder(store, pending.key)
        )
        is_held = store.holds(pending)
    except (OutcomeUnknownError, StoreUnavailableError):
        return None
    if is_held:
        return True
    return None if may_be_completed else False


def _is_folder(store: Store, key: str) -> bool:
    """Return whether there are objects below a key: S3 servers that keep files answer 500 for it, always."""
    return any(store.pages(f"{key}/", page_size=1))


def is_open(store: Store, pending: PendingUpload) -> bool:
    """Return whether an upload is still open, on the word of the upload itself: a listing may lack it."""
    try:
        store.upload_bytes(pending.key, pending.upload_id)
    except UploadGoneError:
        return False
    return True
