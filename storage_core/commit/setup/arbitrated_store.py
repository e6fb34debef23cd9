"""A store without conditional create, and the journal that decides in its place who creates a name.

    create(name) ──claim──► journal: one claim a name wins, durably
                 ──copy───► store: the claimed bytes, by whoever comes by: all of them write the same

A name is created when its claim is durable. Until its copy stands whoever asks for the name, or is refused
it, writes the copy first; so a claimant that dies in between leaves nothing open. A listing may miss such a
name: to the protocol it is one whose creation has not come through yet.

A name is deleted claim first: what a crash leaves is an object that still stands, and refuses all others.

Source: commit protocol, "Job commit": where a store has no conditional create, the journal is the arbiter.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tenacity import Retrying

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, digest
from lockgate.storage_core.commit.records.job_folder import while_busy
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    JournalUnavailableError,
    MalformedRecordError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    UnsupportedStoreError,
)
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.stores import ObjectInfo, PendingUpload, Store
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.protocol import DeleteFailure, check_key

INLINE_BYTES: Final = 256 * 1024
"""A longer record goes to the store first, and the journal holds its digest."""

_DIGEST: Final = "sha256:"
_UNDISPUTED: Final = re.compile(
    rf"{layout.SUCCESS}|{layout.ROOT}shards/.+|{layout.JOBS}[^/]+/(plan|report)/.+"
)
"""Names that need no arbiter: digests, for which all write the same, and the summary for readers, which
decides nothing."""


class ArbitratedStore(InstrumentedStore):
    """A `Store` around one without conditional create; `create` has one winner all the same.

    Everyone who creates, reads or deletes decisions at the place has to come through the same journal.
    Completions stay unconditional: names of files are unique.

    Args:
        store: Watched, so that its calls are counted on; with the capabilities that a probe found.
        claims: Of the same place.
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
        if self._stands(key):
            raise self._taken(key)
        if _UNDISPUTED.fullmatch(key):
            return self.put(key, data)
        if not is_arbitrated(key):
            raise self._unsupported("create only what is absent", key)
        body = self._body(key, data)
        try:
            _while_away()(self.claims.take, key, body)
        except AlreadyExistsError:
            self._mend(key)
            self._drop_aside(key, body)
            raise self._taken(key) from None
        return self._copy(key, data, body)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, which is written first where only its claim stands; see `Store.get`."""
        try:
            return super().get(key, start=start, length=length)
        except ObjectNotFoundError:
            if not self._mend(key):
                raise
        return super().get(key, start=start, length=length)

    def head(self, key: str) -> ObjectInfo:
        """Look at an object, which is written first where only its claim stands; see `Store.head`."""
        try:
            return super().head(key)
        except ObjectNotFoundError:
            if not self._mend(key):
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
            UnsupportedStoreError: `if_absent`, of which the store knows nothing.
        """
        if if_absent:
            raise self._unsupported("complete only what is absent", pending.key)
        return super().complete_upload(pending)

    def _mend(self, key: str) -> bool:
        """Write the copy of a claimed name that is missing; tells whether the name is claimed."""
        body = _while_away()(self.claims.find, key) if is_arbitrated(key) else None
        if body is None:
            return False
        if not self._stands(key):
            data = self._read_body(key, body)
            if data is not None:
                self._copy(key, data, body)
        return True

    def _copy(self, key: str, data: bytes, body: str) -> ObjectInfo:
        try:
            # Again after a lost answer too: nobody writes anything else there.
            made = while_busy(OutcomeUnknownError)(self.put, key, data)
        except NotAppliedError as error:
            raise OutcomeUnknownError(
                f"{self.url}/{key}: journal {self.claims.journal.url} holds the name, and the store refused "
                f"the copy ({error}); nothing was deleted; whoever reads the name writes it; try again"
            ) from error
        self._drop_aside(key, body)
        return made

    def _stands(self, key: str) -> bool:
        try:
            super().head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _body(self, key: str, data: bytes) -> str:
        """Return what the claim says of the bytes; long ones are written beside the name first."""
        if len(data) <= INLINE_BYTES:
            return b64encode(data).decode()
        body = _DIGEST + digest(data)
        self.put(_aside(key, body), data)
        return body

    def _read_body(self, key: str, body: str) -> bytes | None:
        """Return the claimed bytes; None where they are not aside any more, for then the copy was made.

        Raises:
            MalformedRecordError: What lies aside is not what was claimed.
        """
        if not body.startswith(_DIGEST):
            return b64decode(body)
        aside = _aside(key, body)
        try:
            data = super().get(aside, length=MAX_RECORD_BYTES + 1)
        except ObjectNotFoundError:
            return None
        if _DIGEST + digest(data) != body:
            raise MalformedRecordError(
                f"{self.url}/{aside} is not the record that journal {self.claims.journal.url} holds the name "
                f"{key} for: it was changed; nothing was written from it; put its bytes back"
            )
        return data

    def _drop_aside(self, key: str, body: str) -> None:
        if body.startswith(_DIGEST):
            with suppress(NotAppliedError, OutcomeUnknownError):  # what stays goes with the job's folder
                super().delete(_aside(key, body))

    def _release(self, keys: Sequence[str]) -> None:
        arbitrated = [key for key in keys if is_arbitrated(key)]
        if arbitrated:
            _while_away()(self.claims.release, arbitrated)

    def _unsupported(self, what: str, key: str) -> UnsupportedStoreError:
        return UnsupportedStoreError(
            f"{self.url}/{key}: this store cannot be trusted to {what}, and the journal is the arbiter of "
            f"names below {layout.ROOT} only; nothing was changed; leave file names unique"
        )

    def _taken(self, key: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self.url}/{key}: it stands already; nothing was changed; read it back to learn whose it is"
        )


def is_arbitrated(key: str) -> bool:
    """Tell whether the journal decides who creates a name: a record of ours that others might write too."""
    return key.startswith(layout.ROOT) and _UNDISPUTED.fullmatch(key) is None


def _while_away() -> Retrying:
    """Return what asks a journal again that is away for a moment, as in a failover: it applied nothing."""
    return while_busy(JournalUnavailableError)


def _aside(key: str, body: str) -> str:
    """Key at which a long body waits for its copy: no listing takes it for a record."""
    return f"{key}.{body.removeprefix(_DIGEST)}"
