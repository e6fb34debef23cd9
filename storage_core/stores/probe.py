"""Try on a store what its protocol promises, because look-alikes accept conditions and ignore them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol, runtime_checkable

import msgspec

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnsupportedStoreError,
)
from lockgate.storage_core.ids import Token, new_token
from lockgate.storage_core.stores.instrumented import WatchedStore, watched
from lockgate.storage_core.stores.protocol import Capabilities, PendingUpload, Store

_CREATES: Final = "create leaves an object that is there"
_COMPLETES: Final = "conditional completion leaves an object that is there"
_PUTS: Final = "conditional put replaces the named version only"
_DELETES: Final = "conditional delete removes the named version only"
_SILENCES: Final = 3
"""So often a promise is tried whose call gets no answer; a store that never answers it breaks it."""
_EXPIRES: Final = "a lifecycle rule aborts uploads that nobody owns, and no job's"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One promise, and whether the store kept it.

    Attributes:
        name: The promise.
        ok: Whether it was kept.
        detail: What was seen instead, and what to do about it; empty where all is well.
    """

    name: str
    ok: bool
    detail: str = ""


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a store was seen to do.

    Attributes:
        capabilities: What it can be trusted with.
        findings: In the order in which they were tried.
    """

    capabilities: Capabilities
    findings: list[Finding]


@runtime_checkable
class _Adjustable(Protocol):
    def with_capabilities(self, capabilities: Capabilities) -> Store: ...


@runtime_checkable
class _Expiring(Protocol):
    def doubt_of_upload_expiry(self) -> str: ...


def with_capabilities(store: Store, capabilities: Capabilities) -> Store:
    """Return the same store, trusted with what a probe found.

    Raises:
        UnsupportedStoreError: The store is of a kind that cannot be told.
    """
    if isinstance(store, WatchedStore):
        return watched(with_capabilities(store.inner, capabilities), store.requests)
    if isinstance(store, _Adjustable):
        return store.with_capabilities(capabilities)
    raise UnsupportedStoreError(f"{store.url}: {type(store).__name__} cannot be given other capabilities")


def probe(store: Store) -> ProbeReport:
    """Try every promise under `_lockgate/probe/<random>/`, and remove what that leaves.

    A promise that is broken is a finding. What stops the probe itself is raised.

    Raises:
        AccessDeniedError: There are no credentials, or they lack a permission.
        ObjectNotFoundError: There is no such bucket.
        StoreUnavailableError: The store cannot be reached.
    """
    # Conditions are tried even where the store is not trusted with them: that is the question.
    trusting = msgspec.structs.replace(
        store.capabilities, conditional_create=True, conditional_put=True, conditional_delete=True
    )
    trial = _Trial(with_capabilities(store, trusting), f"_lockgate/probe/{new_token()}/")
    with trial.cleaned_up():
        findings = trial.run()
    findings += _expiry_of_uploads(store)
    kept = {finding.name for finding in findings if finding.ok}
    capabilities = msgspec.structs.replace(
        store.capabilities,
        conditional_create={_CREATES, _COMPLETES} <= kept,
        conditional_put=_PUTS in kept,
        conditional_delete=_DELETES in kept,
    )
    return ProbeReport(capabilities=capabilities, findings=findings)


class _Trial:
    """One run of the probe in a folder of its own; remembers its uploads, which a listing may not find."""

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self.folder = folder
        self.uploaded: list[PendingUpload] = []

    def run(self) -> list[Finding]:
        """Try the promises one by one."""
        promises: dict[str, Callable[[], str]] = {
            _CREATES: self.create,
            _COMPLETES: self.complete_conditionally,
            _PUTS: self.put_conditionally,
            _DELETES: self.delete_conditionally,
            "listing goes on after a key, page by page": self.list_in_pages,
            "an open upload is listed, and invisible": self.list_uploads,
            "abort removes an upload": self.abort,
            "a completed upload is recognised by its token": self.recognise,
        }
        return [self.tried(name, promise) for name, promise in promises.items()]

    def tried(self, name: str, promise: Callable[[], str]) -> Finding:
        """Try a promise, in a folder of its own each time that an answer is lost: silence breaks none."""
        whole = self.folder
        detail = ""
        for number in range(_SILENCES):
            self.folder = f"{whole}{number}/"
            try:
                detail = promise()
                break
            except OutcomeUnknownError as fault:
                detail = str(fault)
            except (AlreadyExistsError, PreconditionFailedError, UnsupportedStoreError) as fault:
                detail = str(fault)
                break
            finally:
                self.folder = whole
        return Finding(name=name, ok=not detail, detail=detail)

    def create(self) -> str:
        """Create twice; the first content must stay."""
        self.store.create(self.folder + "create", b"first")
        with suppress(AlreadyExistsError):
            self.store.create(self.folder + "create", b"second")
            return "a second create succeeded; without the journal as arbiter no job can commit here"
        return (
            "" if self.store.get(self.folder + "create") == b"first" else "it refused, and wrote all the same"
        )

    def complete_conditionally(self) -> str:
        """Complete an upload where an object stands; the object must stay."""
        key = self.folder + "complete"
        self.store.put(key, b"first")
        pending = self.upload(key)
        with suppress(AlreadyExistsError):
            self.store.complete_upload(pending, if_absent=True)
            return "an upload replaced an object that it was told to leave"
        return "" if self.store.get(key) == b"first" else "it refused, and replaced the object all the same"

    def put_conditionally(self) -> str:
        """Replace the right version, then try with the version that is no longer there."""
        key = self.folder + "put"
        first = self.store.put(key, b"first")
        self.store.put(key, b"second", if_version=first.version)
        with suppress(PreconditionFailedError):
            self.store.put(key, b"third", if_version=first.version)
            return "a version that was not there was replaced"
        return "" if self.store.get(key) == b"second" else "it refused, and wrote all the same"

    def delete_conditionally(self) -> str:
        """Try to delete a version that is no longer there, then the right one."""
        key = self.folder + "delete"
        first = self.store.put(key, b"first")
        second = self.store.put(key, b"second")
        with suppress(PreconditionFailedError):
            self.store.delete(key, if_version=first.version)
            return "a version that was not named was deleted; unmanaged files cannot be replaced safely"
        if not self.exists(key):
            return "it refused, and deleted all the same"
        self.store.delete(key, if_version=second.version)
        return "the named version was not deleted" if self.exists(key) else ""

    def list_in_pages(self) -> str:
        """List three objects one a page, and from the first on."""
        folder = self.folder + "list/"
        keys = [folder + name for name in ("a-b", "a/b", "b")]
        for key in keys:
            self.store.put(key, b"")
        listed = [found.key for page in self.store.pages(folder, page_size=1) for found in page]
        after = [found.key for page in self.store.pages(folder, after=keys[0], page_size=1) for found in page]
        if listed != keys:
            return f"pages of one gave {len(listed)} of 3 keys, or in another order than their bytes"
        return "" if after == keys[1:] else "listing after a key did not start there"

    def list_uploads(self) -> str:
        """Find an open upload by a listing of its folder, and no object at its key."""
        key = self.folder + "uploads/open"
        pending = self.upload(key)
        if self.exists(key):
            return "the file is visible before it was completed"
        if pending.upload_id not in self.open_uploads(self.folder + "uploads/"):
            return "listing by folder does not find it; orphans cannot be swept here"
        return ""

    def abort(self) -> str:
        """Abort an upload; it must be gone from the listing."""
        pending = self.upload(self.folder + "abort/one")
        self.store.abort_upload(pending.key, pending.upload_id)
        gone = pending.upload_id not in self.open_uploads(self.folder + "abort/")
        return "" if gone else "it is still listed"

    def recognise(self) -> str:
        """Complete an upload and ask whether its object is the one."""
        pending = self.upload(self.folder + "holds")
        if self.store.holds(pending):
            return "it was recognised before it was completed"
        self.store.complete_upload(pending)
        recognised = self.store.holds(pending) and self.store.get(pending.key) == b"pending"
        return "" if recognised else "the token was lost on the way: a lost answer could not be settled"

    def upload(self, key: str) -> PendingUpload:
        """Upload one small file and leave it pending."""
        token = Token(new_token())
        upload_id = self.store.begin_upload(key, token)
        part = self.store.put_part(key, upload_id, 1, 0, b"pending")
        pending = self.store.seal_upload(key, upload_id, token, [part])
        self.uploaded.append(pending)
        return pending

    def open_uploads(self, prefix: str) -> set[str]:
        """Return the ids of the open uploads below a prefix."""
        return {upload.upload_id for page in self.store.upload_pages(prefix) for upload in page}

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        with suppress(ObjectNotFoundError):
            self.store.head(key)
            return True
        return False

    @contextmanager
    def cleaned_up(self) -> Iterator[None]:
        """Remove what the trial left, also where it was stopped."""
        try:
            yield
        finally:
            # What stopped the trial says more than what stops the clean-up of it.
            with suppress(NotAppliedError, OutcomeUnknownError):
                for pending in self.uploaded:
                    self.store.abort_upload(pending.key, pending.upload_id)
                for objects in list(self.store.pages(self.folder)):
                    self.store.delete_many([found.key for found in objects])


def _expiry_of_uploads(store: Store) -> list[Finding]:
    inner = store.inner if isinstance(store, WatchedStore) else store
    if not isinstance(inner, _Expiring):
        return []
    try:
        detail = inner.doubt_of_upload_expiry()
    except (NotAppliedError, OutcomeUnknownError) as fault:
        detail = f"could not be read: {fault}"
    return [Finding(name=_EXPIRES, ok=not detail, detail=detail)]
