"""The `Store` protocol and its records.

Keys are relative to the store's root, use `/`, and never start or end with one; `check_key` refuses others. A
*pending upload* is a completely written file that is not visible: on S3 an uncompleted multipart upload, on a
file system one hidden file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import Token

MAX_KEY_BYTES: Final = 1024
PAGE: Final = 1000
MAX_METADATA_BYTES: Final = 1900
"""S3 accepts 2 KB of metadata for each object, including the owner token."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_RESERVED: Final = "lockgate-"

Item = TypeVar("Item")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities of a store beyond the protocol's minimum.

    Attributes:
        conditional_create: `create` and `complete_upload(if_absent=True)` have exactly one winner. Otherwise
            a journal must arbitrate creation, or the set-up of jobs is refused.
        conditional_put: `put(if_version=…)` refuses another version.
        conditional_delete: `delete(if_version=…)` refuses another version.
        min_part_bytes: Minimum size of every part except the last.
        max_parts: Maximum number of parts of an upload.
    """

    conditional_create: bool
    conditional_put: bool
    conditional_delete: bool
    min_part_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1
    max_parts: Annotated[int, msgspec.Meta(ge=1)] = 10_000


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One visible object.

    Attributes:
        key: Key relative to the store's root. In a listing it may be one that `check_key` refuses; bytes of a
            file's name that are not UTF-8 are then lone surrogates, as in `os.fsdecode`.
        size: Size in bytes.
        version: Opaque version, which changes with the content (S3: the ETag).
        modified_s: Time of the last change by the store's clock, in seconds since the epoch.
        token: Owner token of its creation, if the response contains it (a listing does not).
    """

    key: str
    size: int
    version: str
    modified_s: float
    token: Token | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part of a pending upload, as the store acknowledged it.

    Attributes:
        number: Number of the part, from 1.
        size: Size in bytes.
        etag: Opaque tag that the completion must contain.
        checksum: Checksum of the bytes, if the store keeps one (S3: base64 of CRC-32 or CRC-64/NVME).
    """

    number: int
    size: int
    etag: str
    checksum: str | None = None


class PendingUpload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sealed upload: all data needed to complete, abort or recognise it.

    Attributes:
        key: Key at which it will be visible.
        upload_id: The store's id of the upload.
        token: Owner token from its creation.
        size: Total size in bytes.
        parts: Parts in order of their numbers, which are 1, 2, … n.
        seal: Opaque data by which the store recognises the completed object (local: inode and time).
    """

    key: str
    upload_id: str
    token: Token
    size: int
    parts: tuple[Part, ...]
    seal: str = ""


class UploadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One open upload in a listing.

    Attributes:
        key: Key at which it would be visible.
        upload_id: The store's id of the upload.
        begun_s: Time of its creation by the store's clock, in seconds since the epoch.
        size: Size in bytes, if the listing contains it (S3's does not; see `Store.upload_bytes`).
    """

    key: str
    upload_id: str
    begun_s: float
    size: int | None = None


class DeleteFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a bulk delete did not delete, and why."""

    key: str
    reason: str


class SendCompletion(Protocol):
    """Sends the request of `Store.complete_upload`, and does not wait for its answer."""

    def __call__(
        self, pending: PendingUpload, *, if_absent: bool, arrived: Callable[[], None]
    ) -> Callable[[], ObjectInfo]:
        """Return a function that waits for the answer, and returns or raises what `complete_upload` does.

        Args:
            pending: The upload.
            if_absent: As in `complete_upload`.
            arrived: Called, from any thread, when the answer is there, or it is known that none will come. If
                it is not called in time, that function must be called all the same.

        Raises:
            NotAppliedError: The request was not sent; `arrived` is not called.
            OutcomeUnknownError: It is unknown whether it was sent; `arrived` is not called.
        """


class CompletionSender(NamedTuple):
    """A way to complete uploads without a thread for each.

    Attributes:
        send: Sends one request.
        patience_s: Time after which an answer does not come any more.
    """

    send: SendCompletion
    patience_s: float


class Store(Protocol):
    """An object store, opened at a destination. Thread-safe.

    Methods raise only `LockgateError`: `NotAppliedError` if the call is known to have had no effect,
    `OutcomeUnknownError` if there was no answer.
    """

    @property
    def url(self) -> str:
        """URL of the destination without a trailing slash: `s3://bucket/prefix` or `file:///dir`."""

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of this store."""

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> ObjectInfo:
        """Write an object atomically, and replace an existing one.

        Args:
            if_version: Replace only this version.

        Raises:
            PreconditionFailedError: The object has another version or does not exist.
        """

    def create(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object durably if there is none. The request is never retried.

        Raises:
            AlreadyExistsError: There is one; after a lost answer it may be the caller's.
            OutcomeUnknownError: There was no answer; read the object back.
        """

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return an object's bytes `[start, start + length)`, fewer at its end.

        Raises:
            ObjectNotFoundError: There is no object.
        """

    def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata.

        Raises:
            ObjectNotFoundError: There is no object.
        """

    def pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[ObjectInfo]]:
        """Yield all visible objects whose key starts with `prefix`, in pages, ordered by the key's UTF-8.

        Args:
            prefix: Any string. End a folder with `/`, so that `dataset1/` does not match `dataset10/`.
            after: Only return keys greater than this one.
            page_size: Maximum number of objects in a page, up to 1,000.
        """

    def delete(self, key: str, *, if_version: str | None = None) -> None:
        """Delete an object; a missing one counts as deleted.

        Args:
            key: Any key from a listing, also one that `check_key` refuses.
            if_version: Delete only this version.

        Raises:
            PreconditionFailedError: The object has another version.
            UnsupportedStoreError: `if_version` on a store without conditional delete.
        """

    def delete_many(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """Delete many objects in few requests; return those that could not be deleted."""

    def begin_upload(
        self,
        key: str,
        token: Token,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        copy_of: str | None = None,
    ) -> str:
        """Open a pending upload that will be visible at `key`; return its id.

        Args:
            token: Owner token, stored with the upload and its object (S3: metadata `lockgate-token`).
            content_type: MIME type, for stores that support it.
            metadata: Metadata valid for `check_metadata`, for stores that support it.
            copy_of: Key of the object whose bytes `copy_part` writes; its type and metadata are copied too.

        Raises:
            ObjectNotFoundError: There is no object to copy, in a store that asks for it.
        """

    def put_part(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> Part:
        """Write one part, and replace an earlier part with the same number.

        Args:
            number: Number of the part, from 1 to `capabilities.max_parts`.
            offset: Total size of all parts before this one.
            data: At least `capabilities.min_part_bytes` unless it is the last part; empty only as the single
                part of an empty file.

        Raises:
            UploadGoneError: The upload is not open.
        """

    def copy_part(
        self, key: str, upload_id: str, number: int, offset: int, *, source: str, start: int, length: int
    ) -> Part:
        """Write one part from the bytes `[start, start + length)` of an object, without reading them here.

        Args:
            number: Number of the part; as in `put_part`.
            offset: Total size of all parts before this one.
            source: Key of the object.
            start: First byte of it.
            length: At least `capabilities.min_part_bytes` unless it is the last part; not 0.

        Raises:
            UploadGoneError: The upload is not open.
            ObjectNotFoundError: There is no object.
        """

    def seal_upload(self, key: str, upload_id: str, token: Token, parts: Sequence[Part]) -> PendingUpload:
        """Make all parts durable and return the record with which any process can complete the upload.

        Raises:
            InvalidInputError: The parts' numbers are not 1, 2, … n.
        """

    def complete_upload(self, pending: PendingUpload, *, if_absent: bool = False) -> ObjectInfo:
        """Make a pending upload visible at its key atomically.

        A repeated completion may succeed or raise `UploadGoneError`; use `holds` to find out.

        Args:
            if_absent: Complete only if there is no object.

        Raises:
            UploadGoneError: The upload is not open.
            AlreadyExistsError: `if_absent`, and there is an object. The upload stays open.
            OutcomeUnknownError: There was no answer; use `holds` to find out.
        """

    def completion_sender(self) -> CompletionSender | None:
        """Return what completes uploads without a thread for each; None: the store can only wait.

        The error of a completion is raised by what the sender returns, so several can be under way.
        """

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort a pending upload; a missing one counts as aborted. Never changes a visible object.

        Args:
            key: Any key from a listing, also one that `check_key` refuses.
            upload_id: The store's id of the upload.
        """

    def holds(self, pending: PendingUpload) -> bool:
        """Return whether the object at the pending upload's key is the result of this upload.

        Compares owner token and size (S3), or inode, size and time (local); never only an ETag.
        """

    def upload_bytes(self, key: str, upload_id: str) -> int:
        """Return the size of an open upload in bytes. On S3 this is one request for every upload.

        Raises:
            UploadGoneError: The upload is not open.
        """

    def upload_pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[UploadInfo]]:
        """Yield all open uploads whose key starts with `prefix`, in pages, ordered by key.

        Args:
            prefix: Beginning of the keys.
            after: Only keys greater than this one.
            page_size: Maximum number of uploads in a page, from 1 to 1,000.
        """


_NO_CHARACTERS: Final = "\ufffe\uffff"
"""XML cannot hold these: a server lists another key in place of one that has them."""


def check_key(key: str) -> str:
    """Return the key if it is valid in every store.

    Raises:
        InvalidInputError: It is empty, absolute, too long, not in Unicode's NFC form, or has a segment that
            is empty, `.`, `..`, or contains a control character or backslash.
    """
    if not key or len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
        raise InvalidInputError(f"key {key[:80]!r}: must have 1 to {MAX_KEY_BYTES} bytes")
    is_plain = key.isascii() and key.isprintable()  # of most keys, and quickly known
    if not is_plain and unicodedata.normalize("NFC", key) != key:
        raise InvalidInputError(
            f"key {key[:80]!r}: must be in Unicode's NFC form, because two names could look the same"
        )
    for segment in key.split("/"):
        if segment in {"", ".", ".."}:
            raise InvalidInputError(f"key {key[:80]!r}: segment {segment!r} could leave the destination")
        if "\\" in segment or (
            not is_plain
            and any(c in _NO_CHARACTERS or unicodedata.category(c) in {"Cc", "Cs"} for c in segment)
        ):
            raise InvalidInputError(f"key {key[:80]!r}: has a backslash or a control character")
    return key


def check_listed_key(key: str) -> str:
    """Return a key from a listing if no path or URL can take it for another key.

    Raises:
        InvalidInputError: It is empty or absolute, or has a segment that is empty, `.` or `..`.
    """
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise InvalidInputError(f"key {key[:80]!r}: it has a segment that could leave the destination")
    return key


def check_parts(key: str, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts in order of their numbers.

    Raises:
        InvalidInputError: The numbers are not 1, 2, … n.
    """
    ordered = tuple(sorted(parts, key=lambda part: part.number))
    if not ordered or [part.number for part in ordered] != list(range(1, len(ordered) + 1)):
        raise InvalidInputError(f"upload of {key!r}: parts must be numbered 1, 2, … without a gap")
    return ordered


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata if every store that supports metadata can store it unchanged.

    Raises:
        InvalidInputError: A name is not lower-case letters, digits and hyphens, or is reserved; a value is
            empty, padded with spaces or not printable ASCII; or the total is too long.
    """
    for name, value in metadata.items():
        if not _NAME.fullmatch(name) or name.startswith(_RESERVED):
            raise InvalidInputError(
                f"metadata {name[:80]!r}: names are 1 to 64 lower-case letters, digits and hyphens, and "
                f"{_RESERVED}… is reserved"
            )
        if not _VALUE.fullmatch(value):
            raise InvalidInputError(
                f"metadata {name!r}: its value {value[:80]!r} must be printable ASCII, not padded"
            )
    if sum(len(name) + len(value) for name, value in metadata.items()) > MAX_METADATA_BYTES:
        raise InvalidInputError(f"metadata: more than {MAX_METADATA_BYTES} bytes of names and values")
    return dict(metadata)


def in_pages(items: Iterable[Item], page_size: int) -> Iterator[tuple[Item, ...]]:
    """Yield pages of `page_size` items, clamped to 1 to 1,000."""
    rest, size = iter(items), max(1, min(page_size, PAGE))
    while page := tuple(islice(rest, size)):
        yield page
