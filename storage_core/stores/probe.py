"""Test the `Store` protocol's promises on a real store: some S3 look-alikes ignore conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol, runtime_checkable

import msgspec

from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from lockgate.storage_core.ids import Token, new_token
from lockgate.storage_core.stores.instrumented import InstrumentedStore, instrument
from lockgate.storage_core.stores.protocol import Capabilities, PendingUpload, Store

PROBES: Final = "_lockgate/probe/"
"""Prefix of what probes write and delete."""

_WRITES: Final = "objects and uploads are written and read"
_CREATES: Final = "create does not replace an object"
_COMPLETES: Final = "conditional completion does not replace an object"
_PUTS: Final = "conditional put replaces only the given version"
_DELETES: Final = "conditional delete deletes only the given version"
_LISTS: Final = "listing continues after a key, page by page"
_LISTS_UPLOADS: Final = "an open upload is listed but not visible"
_ABORTS: Final = "abort removes an upload"
_EQUAL_PARTS: Final = "the parts of an upload may have different sizes"
_DELETES_MANY: Final = "many objects are deleted by one request"
_UNSAFE: Final = frozenset({_LISTS, _LISTS_UPLOADS, _ABORTS})
"""A job may lose files or rows where the store breaks one of these."""
_ATTEMPTS: Final = 3
"""Number of attempts of a promise whose call gets no answer."""
_EXPIRES: Final = "a lifecycle rule aborts abandoned uploads, but none of running jobs"
_KEEPS: Final = "no lifecycle rule deletes live or kept files, and noncurrent versions end"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of testing one promise.

    Attributes:
        name: The promise.
        ok: Whether the store kept it; None if that could not be tested.
        detail: What happened instead, and the remedy; empty if the store kept it.
    """

    name: str
    ok: bool | None
    detail: str = ""


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe.

    Attributes:
        capabilities: Capabilities that the store has shown.
        findings: Results in the order of the tests.
        left: Keys that the probe wrote and could not delete; only of a thorough probe.
    """

    capabilities: Capabilities
    findings: list[Finding]
    left: list[str] = []

    @property
    def refusals(self) -> list[Finding]:
        """Findings with which no job can be held there, whatever arbitrates names."""
        return [finding for finding in self.findings if finding.name == _WRITES and not finding.ok]

    @property
    def without_create(self) -> list[str]:
        """What was seen of names that are created once, where the store cannot be trusted with them."""
        named = {_CREATES, _COMPLETES}
        return [finding.detail for finding in self.findings if finding.name in named and not finding.ok]

    @property
    def dangers(self) -> list[Finding]:
        """Findings with which a job may lose files or rows."""
        return [finding for finding in self.findings if finding.name in _UNSAFE and not finding.ok]


@runtime_checkable
class _Adjustable(Protocol):
    def with_capabilities(self, capabilities: Capabilities) -> Store: ...


@runtime_checkable
class _DeletingMany(Protocol):
    deletes_many: bool


@runtime_checkable
class _Expiring(Protocol):
    def upload_expiry_problem(self) -> str: ...

    def file_expiry_problem(self) -> str: ...


def with_capabilities(store: Store, capabilities: Capabilities) -> Store:
    """Return a copy of the store with the capabilities that a probe found.

    Raises:
        UnsupportedStoreError: The capabilities of this kind of store cannot be changed.
    """
    if isinstance(store, InstrumentedStore):
        return instrument(with_capabilities(store.inner, capabilities), store.requests)
    if isinstance(store, _Adjustable):
        return store.with_capabilities(capabilities)
    raise UnsupportedStoreError(f"{store.url}: {type(store).__name__} cannot be given other capabilities")


def probe(store: Store, *, at_once: int = 8, thorough: bool = False) -> ProbeReport:
    """Test every promise under `_lockgate/probe/<random>/`, and delete everything there afterwards.

    A broken promise is reported as a finding; only errors that prevent the probe are raised.

    Args:
        store: Store to test.
        at_once: Maximum number of promises that are tested at a time.
        thorough: Also send large parts, which test what matters to very large files only, look for what was
            not deleted, and read what the bucket does with files.

    Raises:
        AccessDeniedError: There are no credentials, or they lack a permission.
        ObjectNotFoundError: There is no such bucket.
        StoreUnavailableError: The store cannot be reached.
    """
    # Otherwise the store would refuse conditional calls that it is not trusted with.
    all_conditions = msgspec.structs.replace(
        store.capabilities, conditional_create=True, conditional_put=True, conditional_delete=True
    )
    trial = _Trial(with_capabilities(store, all_conditions), f"{PROBES}{new_token()}/", at_once)
    with trial.cleaned_up():
        findings = trial.run(thorough=thorough)
    left = trial.left() if thorough else []
    findings += [*_check_bulk_deletion(trial.store), *_check_expiry(store, thorough=thorough)]
    kept = {finding.name for finding in findings if finding.ok}
    capabilities = msgspec.structs.replace(
        store.capabilities,
        conditional_create={_CREATES, _COMPLETES} <= kept,
        conditional_put=_PUTS in kept,
        conditional_delete=_DELETES in kept,
    )
    return ProbeReport(capabilities=capabilities, findings=findings, left=left)


class _Trial:
    """One run of the probe in a separate folder. Records its uploads, which a listing may not return."""

    def __init__(self, store: Store, folder: str, at_once: int) -> None:
        self.store = store
        self.folder = folder
        self.at_once = at_once
        self.uploaded: list[PendingUpload] = []
        self.keys: list[str] = []

    def run(self, *, thorough: bool) -> list[Finding]:
        """Test all promises, and return the findings in their order; if nothing can be written, only that."""
        promises: dict[str, Callable[[str], str]] = {
            _WRITES: self.write,
            _CREATES: self.create,
            _COMPLETES: self.complete_conditionally,
            _PUTS: self.put_conditionally,
            _DELETES: self.delete_conditionally,
            _LISTS: self.list_in_pages,
            _LISTS_UPLOADS: self.list_uploads,
            _ABORTS: self.abort,
            "a completed upload is recognised by its token": self.recognise,
        }
        if thorough and self.store.capabilities.min_part_bytes > 1:
            promises[_EQUAL_PARTS] = self.complete_unequal_parts
        findings = list(in_order(lambda named: self.test(*named), promises.items(), self.at_once))
        return findings if findings[0].ok else findings[:1]

    def test(self, name: str, promise: Callable[[str], str]) -> Finding:
        """Test a promise; repeat it in another folder if a call gets no answer.

        Raises:
            AccessDeniedError: The credentials lack a permission.
            ObjectNotFoundError: There is no such bucket.
            StoreUnavailableError: No attempt got all its answers, so nothing is known.
        """
        for number in range(_ATTEMPTS):
            try:
                detail = promise(f"{self.folder}{number}/")
            except OutcomeUnknownError as error:
                silence = str(error)
                continue
            except (AccessDeniedError, StoreUnavailableError):
                raise
            except NotAppliedError as error:
                if name == _WRITES and isinstance(error, ObjectNotFoundError):
                    raise
                detail = str(error)
            return Finding(name=name, ok=not detail, detail=detail)
        raise StoreUnavailableError(
            f"{self.store.url}: whether {name} is unknown: the store did not answer {_ATTEMPTS} times "
            f"({silence}); nothing was decided; try again later"
        )

    def write(self, folder: str) -> str:
        """Write and read an object, by one request and by an upload."""
        self.store.put(self.key(folder + "plain"), b"pending")
        self.store.complete_upload(self.upload(folder + "uploaded"))
        for key in (folder + "plain", folder + "uploaded"):
            with suppress(ObjectNotFoundError):
                if self.store.get(key) == b"pending":
                    continue
            return f"{key} was written, and was not read back"
        return ""

    def create(self, folder: str) -> str:
        """Create an object twice; it must keep the first content."""
        self.store.create(self.key(folder + "create"), b"first")
        with suppress(AlreadyExistsError):
            self.store.create(folder + "create", b"second")
            return "a second create succeeded; without the journal as arbiter no job can commit here"
        return "" if self.store.get(folder + "create") == b"first" else "it was refused but still applied"

    def complete_conditionally(self, folder: str) -> str:
        """Complete an upload where there is no object, then at the key of one, which must not change."""
        key = self.key(folder + "complete")
        self.store.complete_upload(self.upload(folder + "new"), if_absent=True)
        self.store.put(key, b"first")
        pending = self.upload(key)
        with suppress(AlreadyExistsError):
            self.store.complete_upload(pending, if_absent=True)
            return "a conditional completion replaced an existing object"
        return "" if self.store.get(key) == b"first" else "it was refused but still applied"

    def put_conditionally(self, folder: str) -> str:
        """Replace the current version, then try to replace the outdated version."""
        key = self.key(folder + "put")
        first = self.store.put(key, b"first")
        self.store.put(key, b"second", if_version=first.version)
        with suppress(PreconditionFailedError):
            self.store.put(key, b"third", if_version=first.version)
            return "a put with an outdated version succeeded"
        return "" if self.store.get(key) == b"second" else "it was refused but still applied"

    def delete_conditionally(self, folder: str) -> str:
        """Try to delete an outdated version, then delete the current version."""
        key = self.key(folder + "delete")
        first = self.store.put(key, b"first")
        second = self.store.put(key, b"second")
        with suppress(PreconditionFailedError):
            self.store.delete(key, if_version=first.version)
            return "a delete with an outdated version succeeded; unmanaged files cannot be replaced safely"
        if not self.exists(key):
            return "it was refused but still applied"
        self.store.delete(key, if_version=second.version)
        return "the current version was not deleted" if self.exists(key) else ""

    def list_in_pages(self, folder: str) -> str:
        """List three objects with one object a page, and list those after the first."""
        folder += "list/"
        keys = [self.key(folder + name) for name in ("a-b", "a/b %41+", "b")]
        for key in keys:
            self.store.put(key, b"")
        listed = [found.key for page in self.store.pages(folder, page_size=1) for found in page]
        after = [found.key for page in self.store.pages(folder, after=keys[0], page_size=1) for found in page]
        if listed != keys:
            return f"pages of one key returned {len(listed)} of 3 keys just written, or not in byte order"
        return "" if after == keys[1:] else "listing after a key did not start there"

    def list_uploads(self, folder: str) -> str:
        """Find an open upload in a listing of its folder, and no object at its key."""
        key = folder + "uploads/open %41+"
        pending = self.upload(key)
        if self.exists(key):
            return "the file was visible before its completion"
        if (key, pending.upload_id) not in self.open_uploads(folder + "uploads/"):
            return "a listing of the folder does not contain it; orphans cannot be swept here"
        return ""

    def abort(self, folder: str) -> str:
        """Abort an upload; it must disappear from the listing."""
        pending = self.upload(folder + "abort/one")
        self.store.abort_upload(pending.key, pending.upload_id)
        gone = (pending.key, pending.upload_id) not in self.open_uploads(folder + "abort/")
        return "" if gone else "it is still listed"

    def recognise(self, folder: str) -> str:
        """Complete an upload and recognise its object."""
        pending = self.upload(folder + "holds")
        if self.store.holds(pending):
            return "it was recognised before its completion"
        self.store.complete_upload(pending)
        recognised = self.store.holds(pending) and self.store.get(pending.key) == b"pending"
        return "" if recognised else "the object has lost the token: a lost answer could not be resolved"

    def complete_unequal_parts(self, folder: str) -> str:
        """Complete an upload whose parts grow, as those of a file of unknown size do."""
        least = self.store.capabilities.min_part_bytes
        pending = self.upload(folder + "parts", bytes(least), bytes(least + 1), b"end")
        try:
            self.store.complete_upload(pending)
        except NotAppliedError as error:
            return f"{error}; set LOCKGATE_S3_EQUAL_PARTS=true"
        return ""

    def upload(self, key: str, *parts: bytes) -> PendingUpload:
        """Create a pending upload, by default of a small file."""
        token = Token(new_token())
        upload_id = self.store.begin_upload(self.key(key), token)
        offset, written = 0, []
        for number, data in enumerate(parts or (b"pending",), start=1):
            written.append(self.store.put_part(key, upload_id, number, offset, data))
            offset += len(data)
        pending = self.store.seal_upload(key, upload_id, token, written)
        self.uploaded.append(pending)
        return pending

    def key(self, key: str) -> str:
        """Return a key, and delete its object at the end: a listing may not contain it."""
        self.keys.append(key)
        return key

    def open_uploads(self, prefix: str) -> set[tuple[str, str]]:
        """Return key and id of each open upload below a prefix."""
        return {(found.key, found.upload_id) for page in self.store.upload_pages(prefix) for found in page}

    def exists(self, key: str) -> bool:
        """Return whether there is an object."""
        with suppress(ObjectNotFoundError):
            self.store.head(key)
            return True
        return False

    def left(self) -> list[str]:
        """Return the keys of objects and uploads that are still there after the clean-up."""
        keys = sorted(set(self.keys))
        found = zip(keys, in_order(self.exists, keys, self.at_once), strict=True)
        uploads = (upload.key for page in self.store.upload_pages(self.folder) for upload in page)
        return [*(key for key, is_there in found if is_there), *uploads]

    def drop(self, pending: PendingUpload) -> None:
        """Abort an upload, if it is still open."""
        self.store.abort_upload(pending.key, pending.upload_id)

    @contextmanager
    def cleaned_up(self) -> Iterator[None]:
        """Delete everything in the probe's folder at the end, also after an error."""
        try:
            yield
        finally:
            # An error of the clean-up must not replace the error that ended the probe.
            with suppress(NotAppliedError, OutcomeUnknownError):
                for _ in in_order(self.drop, self.uploaded, self.at_once):
                    pass
                self.store.delete_many(sorted(set(self.keys)))


def _check_bulk_deletion(store: Store) -> list[Finding]:
    inner = store.inner if isinstance(store, InstrumentedStore) else store
    if not isinstance(inner, _DeletingMany):
        return []
    detail = "" if inner.deletes_many else "one request deletes each object; nothing has to be set"
    return [Finding(name=_DELETES_MANY, ok=inner.deletes_many, detail=detail)]


def _check_expiry(store: Store, *, thorough: bool) -> Iterator[Finding]:
    inner = store.inner if isinstance(store, InstrumentedStore) else store
    if not isinstance(inner, _Expiring):
        return
    checks = {_EXPIRES: inner.upload_expiry_problem}
    if thorough:
        checks[_KEEPS] = inner.file_expiry_problem
    for name, check in checks.items():
        try:
            detail = check()
        except (NotAppliedError, OutcomeUnknownError) as error:
            why = f"not tested, because the rules cannot be read: {error}"
            yield Finding(name=name, ok=None, detail=why)
        else:
            yield Finding(name=name, ok=not detail, detail=detail)
