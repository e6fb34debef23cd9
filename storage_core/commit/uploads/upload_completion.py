"""Completion of one upload, whatever the store answers: visible, lost for good, or not known."""

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
"""Refusals that an operator mends (a permission, a bucket): the job stays decided, and no file is lost."""


def complete(store: Store, pending: PendingUpload, *, if_absent: bool, verify: bool, clock: Clock) -> bool:
    """Make one upload visible, whatever the answers.

    Args:
        if_absent: Only where no object is.
        verify: Read the object even after a success: where names are not unique, some stores answer 200
            to the completion of an upload that is gone if any object stands at its key.

    Returns:
        Whether its object stands. False: lost for good, for the store refuses to complete it, time and
        again and definitely, or the upload is gone; *and* the object is absent or not ours.

    Raises:
        OutcomeUnknownError: Neither is known after several tries.
    """
    error: LockgateError | None = None
    for attempt in _until_settled(clock):
        with attempt:
            try:
                store.complete_upload(pending, if_absent=if_absent)
            except NOT_ABOUT_THE_FILE:
                raise
            except (NotAppliedError, OutcomeUnknownError) as answer:
                error = answer
            else:
                if not verify:
                    return True
                error = UploadGoneError(f"{store.url}/{pending.key}: completed, but its object is another's")
            is_last = attempt.retry_state.attempt_number == SETTLE_TRIES
            settled = _settle(store, pending, error, last=is_last)
            if settled is not None:
                return settled
    raise OutcomeUnknownError(
        f"{store.url}/{pending.key}: completing it was tried {SETTLE_TRIES} times; it is not known whether "
        f"it is visible ({error}); nothing was deleted; run recovery for its job"
    )


def _until_settled(clock: Clock) -> Retrying:
    """Return tries with growing pauses. An error that is raised in one ends them; the last raises none."""
    return Retrying(
        sleep=clock.sleep,
        stop=stop_after_attempt(SETTLE_TRIES),
        wait=wait_exponential(multiplier=0.2),
        retry=retry_if_result(lambda _: True),
        retry_error_callback=lambda _: None,
    )


def _settle(store: Store, pending: PendingUpload, error: LockgateError, *, last: bool) -> bool | None:
    """Read what stands: True completed, False lost for good, None not known yet."""
    try:
        if store.holds(pending):
            return True
        if not last:
            # Somebody else's completion of the same upload may be about to show its object: look again.
            return None
        definite = isinstance(error, NotAppliedError) and not isinstance(error, StoreUnavailableError)
        return False if definite or not is_open(store, pending) else None
    except (OutcomeUnknownError, StoreUnavailableError):
        return None


def is_open(store: Store, pending: PendingUpload) -> bool:
    """Tell whether an upload is still open."""
    return any(
        info.key == pending.key and info.upload_id == pending.upload_id
        for page in store.upload_pages(pending.key)
        for info in page
    )
