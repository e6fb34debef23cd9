"""Use the journal as arbiter of names for a store without conditional create.

    create(name) ──claim──► journal: one claim per name wins, durably
                 ──copy───► store: the claimed bytes; any process may write them

A name is created when its claim is durable. Until its copy exists, every process that reads the name, or is
refused it, writes the copy first, so a claimant that dies in between leaves nothing unfinished. A listing may
miss such a name, which the protocol treats like a create that has not completed.

Deletion releases the claim first: after a crash the object still exists, and refuses other creates.

Source: commit protocol, "Job commit": where a store has no conditional create, the journal is the arbiter.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import retry_while_busy
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    JournalUnavailableError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    UnsupportedStoreError,
)
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.retry import Retry
from lockgate.storage_core.stores import ObjectInfo, PendingUpload, Store
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.protocol import DeleteFailure, check_key

_UNDISPUTED: Final = re.compile(
    rf"{layout.SUCCESS}|{layout.ROOT}shards/.+|{layout.JOBS}[^/]+/(plan|report)/.+"
)
"""Names that need no arbiter: digests, which have one possible content, and `_SUCCESS`, which decides
nothing."""


class ArbitratedStore(InstrumentedStore):
    """Wraps a `Store` without conditional create so that `create` has one winner.

    All processes that create, read or delete records at the destination must use the same journal.
    Completions stay unconditional, because file names are unique.

    Args:
        store: Store with its probed capabilities; if it is instrumented, its request counts are continued.
        claims: Claims of the same destination.
    """

    def __init__(self, store: Store, claims: Claims) -> None:
        if isinstance(store, InstrumentedStore):
            super().__init__(store.inner, store.requests)
        else:
            super().__init__(store)
        self.claims = claims

    def create(self, key: str, data: bytes) -> ObjectInfo:
        """Claim the name, then write the object; see `Store.create`."""
        check_key(key)
        if self._exists(key):
            raise self._taken(key)
        if _UNDISPUTED.fullmatch(key):
            return self.put(key, data)
        if not _is_arbitrated(key):
            raise self._unsupported("create only what is absent", key)
        try:
            _retry_while_unavailable().call(self.claims.take, key, b64encode(data).decode())
        except AlreadyExistsError:
            self._complete_copy(key)
            raise self._taken(key) from None
        return self._copy(key, data)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read an object; write it first if it has only a claim. See `Store.get`."""
        try:
            return super().get(key, start=start, length=length)
        except ObjectNotFoundError:
            if not self._complete_copy(key):
                raise
        return super().get(key, start=start, length=length)

    def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata; write it first if it has only a claim. See `Store.head`."""
        try:
            return super().head(key)
        except ObjectNotFoundError:
            if not self._complete_copy(key):
                raise
        return super().head(key)

    def delete(self, key: str, *, if_version: str | None = None) -> None:
        """Release the name, then delete the object; see `Store.delete`."""
        self._release([key])
        super().delete(key, if_version=if_version)

    def delete_many(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """Release the names, then delete the objects; see `Store.delete_many`."""
        self._release(keys)
        return super().delete_many(keys)

    def complete_upload(self, pending: PendingUpload, *, if_absent: bool = False) -> ObjectInfo:
        """Make a pending upload visible; see `Store.complete_upload`.

        Raises:
            UnsupportedStoreError: `if_absent` is set, which the store does not support.
        """
        if if_absent:
            raise self._unsupported("complete only what is absent", pending.key)
        return super().complete_upload(pending)

    def completion_sender(self) -> None:
        """Return none, for `complete_upload` is not that of the store; see `Store.completion_sender`."""

    def _complete_copy(self, key: str) -> bool:
        """Write the missing copy of a claimed name; return whether the name is claimed."""
        body = _retry_while_unavailable().call(self.claims.find, key) if _is_arbitrated(key) else None
        if body is None:
            return False
        if not self._exists(key):
            self._copy(key, b64decode(body))
        return True

    def _copy(self, key: str, data: bytes) -> ObjectInfo:
        try:
            # Retry after a lost answer too: every process writes the same bytes.
            return retry_while_busy(OutcomeUnknownError).call(self.put, key, data)
        except NotAppliedError as error:
            raise OutcomeUnknownError(
                f"{self.url}/{key}: journal {self.claims.journal.url} has its claim, and the store refused "
                f"the copy ({error}); nothing was deleted; the next reader of the name writes it; try again"
            ) from error

    def _exists(self, key: str) -> bool:
        try:
            super().head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _release(self, keys: Sequence[str]) -> None:
        arbitrated = [key for key in keys if _is_arbitrated(key)]
        if arbitrated:
            _retry_while_unavailable().call(self.claims.release, arbitrated)

    def _unsupported(self, what: str, key: str) -> UnsupportedStoreError:
        return UnsupportedStoreError(
            f"{self.url}/{key}: this store cannot be trusted to {what}, and the journal is the arbiter of "
            f"names below {layout.ROOT} only; nothing was changed; leave file names unique"
        )

    def _taken(self, key: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self.url}/{key}: it already exists; nothing was changed; read it back to see whose it is"
        )


def _is_arbitrated(key: str) -> bool:
    """Return whether the journal decides who creates a name: a record that several processes may create."""
    return key.startswith(layout.ROOT) and _UNDISPUTED.fullmatch(key) is None


def _retry_while_unavailable() -> Retry:
    """Return a retry policy for a journal in failover, which applied nothing."""
    return retry_while_busy(JournalUnavailableError)
