"""Complete uploads and resolve each result: visible, permanently lost, or unknown."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.concurrency import in_parallel, overlapping, raise_error
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
from lockgate.storage_core.stores.protocol import SendCompletion

RESOLVE_TRIES: Final = 5
RESOLVE_PAUSE_S: Final = 0.2
NOT_ABOUT_THE_FILE: Final = (AccessDeniedError, UnsupportedStoreError, ObjectNotFoundError)
"""Refusals that an operator can fix (a permission, a bucket): the job stays decided, and no file is lost."""


@dataclass(frozen=True)
class Completions:
    """Makes uploads of one store visible, many at a time, with retries.

    Attributes:
        store: The store.
        if_absent: Complete an upload only if its key has no object.
        verify: Read an object even after a success. If names are not unique, some stores answer 200 to the
            completion of an upload that is gone, because its key has another object.
        clock: Clock for the waits between tries.
    """

    store: Store
    if_absent: bool
    verify: bool
    clock: Clock

    def run(
        self, uploads: Iterable[PendingUpload], limit: int, most: int
    ) -> Generator[tuple[str, str | None], None, None]:
        """Complete uploads, and yield each when its result is resolved.

        Args:
            uploads: The uploads, of different keys.
            limit: As in `in_parallel`.
            most: As in `in_parallel`.

        Yields:
            Key, and None if the object is visible; otherwise why it is permanently lost: its key has no
            object of this upload, or the store refuses to read such a key, *and* the upload is gone, or the
            store repeatedly and definitely refuses to complete it, or there is a folder with the key's name
            and the store repeatedly fails to complete it.

        Raises:
            OutcomeUnknownError: A result is still unknown after several tries.
        """
        sender = None if self.verify else self.store.completion_sender()
        if sender is None:
            yield from in_parallel(self._complete, uploads, limit, most)
            return
        unresolved: list[_Tried] = []
        begin = partial(self._send, sender.send)
        with closing(overlapping(begin, uploads, limit, most, patience_s=sender.patience_s)) as tries:
            for tried in tries:
                if tried.error is None:
                    yield tried.upload.key, None
                    continue
                unresolved.append(tried)
                if len(unresolved) >= limit:  # a store that refuses all is asked more and more slowly
                    yield from in_parallel(self._resolve, unresolved, limit, most)
                    unresolved = []
        yield from in_parallel(self._resolve, unresolved, limit, most)

    def _complete(self, upload: PendingUpload) -> tuple[str, str | None]:
        return self._resolve(self._try(upload))

    def _try(self, upload: PendingUpload) -> _Tried:
        complete = partial(self.store.complete_upload, upload, if_absent=self.if_absent)
        return self._tried(upload, complete)

    def _send(
        self, send: SendCompletion, upload: PendingUpload, arrived: Callable[[], None]
    ) -> Callable[[], _Tried]:
        """Begin the first try of an upload, and return a function that waits for its end."""
        try:
            answer = send(upload, if_absent=self.if_absent, arrived=arrived)
        except LockgateError as error:
            arrived()
            answer = partial(raise_error, error)
        return partial(self._tried, upload, answer)

    def _tried(self, upload: PendingUpload, answer: Callable[[], object]) -> _Tried:
        try:
            answer()
        except NOT_ABOUT_THE_FILE:
            raise
        except (NotAppliedError, OutcomeUnknownError) as error:
            return _Tried(upload, error)
        if not self.verify:
            return _Tried(upload, None)
        where = f"{self.store.url}/{upload.key}"
        return _Tried(upload, UploadGoneError(f"{where}: completed, but the object is of another upload"))

    def _resolve(self, tried: _Tried) -> tuple[str, str | None]:
        """Find out what a try has done, and try again until that is clear."""
        upload, error = tried
        if error is None:
            return upload.key, None  # mostly so, without what the repetition costs
        for number in range(RESOLVE_TRIES):
            if number > 0:
                self.clock.sleep(RESOLVE_PAUSE_S * 2 ** (number - 1))
                error = self._try(upload).error
                if error is None:
                    return upload.key, None
            is_completed = _is_completed(self.store, upload, error, last=number == RESOLVE_TRIES - 1)
            if is_completed is not None:
                return upload.key, None if is_completed else f"there is no object of its upload: {error}"
        raise OutcomeUnknownError(
            f"{self.store.url}/{upload.key}: completing it was tried {RESOLVE_TRIES} times; it is unknown "
            f"whether it is visible ({error}); nothing was deleted; run recovery for its job"
        )


class _Tried(NamedTuple):
    """One try to complete an upload, and what is to be resolved; None if the object is visible."""

    upload: PendingUpload
    error: LockgateError | None


def _is_completed(store: Store, pending: PendingUpload, error: LockgateError, *, last: bool) -> bool | None:
    """Return True if the upload is completed, False if it is permanently lost, None if unknown."""
    try:
        definite = isinstance(error, NotAppliedError) and not isinstance(error, StoreUnavailableError)
        # Before `holds`: an upload that another process completes between the two is then held.
        may_be_completed = not last or not (
            definite or not is_open(store, pending) or is_folder(store, pending.key)
        )
        is_held = _is_held(store, pending)
    except (OutcomeUnknownError, StoreUnavailableError):
        return None
    if is_held:
        return True
    return None if may_be_completed else False


def _is_held(store: Store, pending: PendingUpload) -> bool:
    """Return whether the object is visible; not if the store refuses to read such a key, like a long one."""
    try:
        return store.holds(pending)
    except (StoreUnavailableError, *NOT_ABOUT_THE_FILE):
        raise
    except NotAppliedError:
        if has_no_object(store, pending.key):
            return False
        raise


def has_no_object(store: Store, key: str) -> bool:
    """Return whether a key has no object, or is one that the store refuses to read, such as a long one.

    The answer to a HEAD has no reason. That to this GET has: expired credentials are not the key's.

    Raises:
        NotAppliedError: The refusal is not about the key.
    """
    try:
        store.get(key, length=1)
    except ObjectNotFoundError:
        return True
    except (StoreUnavailableError, *NOT_ABOUT_THE_FILE):
        raise
    except NotAppliedError:
        return True
    return False


def is_folder(store: Store, key: str) -> bool:
    """Return whether there are objects below a key: S3 servers that keep files answer 500 for it, always."""
    return any(store.pages(f"{key}/", page_size=1))


def is_open(store: Store, pending: PendingUpload) -> bool:
    """Return whether an upload is still open, on the word of the upload itself: a listing may lack it."""
    try:
        store.upload_bytes(pending.key, pending.upload_id)
    except UploadGoneError:
        return False
    return True
