"""The `Store` protocol: what every place where bytes land must promise.

Keys are relative to the store's root, use `/`, and never start or end with one. `check_key` refuses what
could leave the root. A *pending upload* is a file that is wholly written and that nobody can see: on S3 an
uncompleted multipart upload, on a file system one hidden file.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import Token

MAX_KEY_BYTES: Final = 1024
PAGE: Final = 1000


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a store can do beyond the protocol's minimum.

    Attributes:
        conditional_create: `create` and `complete_upload(if_absent=True)` have exactly one winner. Without
            it, a journal has to be the arbiter of what is created, or set-up of a job is refused.
        conditional_put: `put(if_version=…)` refuses another version.
        conditional_delete: `delete(if_version=…)` refuses another version.
        min_part_bytes: Smallest size of a part that is not the last.
        max_parts: Greatest number of parts of one upload.
    """

    conditional_create: bool
    conditional_put: bool
    conditional_delete: bool
    min_part_bytes: int = 1
    max_parts: int = 10_000


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One visible object.

    Attributes:
        key: Relative to the store's root.
        size: Bytes.
        version: Changes whenever the content does; opaque (S3: the ETag).
        modified_s: Seconds since the epoch, by the store's clock.
        token: The owner token that it was made with, where the answer carries it (a listing does not).
    """

    key: str
    size: int
    version: str
    modified_s: float
    token: Token | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a pending upload, as the store acknowledged it.

    Attributes:
        number: From 1.
        size: Bytes.
        etag: What completion must present; opaque.
        checksum: Of the part's bytes, where the store keeps one (S3: base64 of CRC-32 or CRC-64/NVME).
    """

    number: int
    size: int
    etag: str
    checksum: str | None = None


class PendingUpload(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed upload: all that anyone needs to complete, abort or recognise it.

    Attributes:
        key: Where it will be visible.
        upload_id: The store's name for it.
        token: The owner token given at its creation.
        size: Bytes of all parts together.
        parts: In order of their numbers, which are gapless from 1.
        seal: What the store needs to recognise the completed object (local: inode and time); opaque.
    """

    key: str
    upload_id: str
    token: Token
    size: int
    parts: tuple[Part, ...]
    seal: str = ""


class UploadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One open upload found in a listing.

    Attributes:
        key: Where it would be visible.
        upload_id: The store's name for it.
        begun_s: Seconds since the epoch, by the store's clock.
        size: Bytes, where the listing tells (S3's does not: `Store.upload_bytes` asks).
    """

    key: str
    upload_id: str
    begun_s: float
    size: int | None = None


class DeleteFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a bulk delete left, and why."""

    key: str
    reason: str


class Store(Protocol):
    """A place where bytes land, opened at a destination. Safe to use from several threads.

    Every method raises the errors of `lockgate.storage_core.errors` only: `NotAppliedError` where the call is known
    to have had no effect, `OutcomeUnknownError` where no answer came.
    """

    @property
    def url(self) -> str:
        """The destination, without a trailing slash: `s3://bucket/prefix` or `file:///dir`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> ObjectInfo:
        """Write an object whole, replacing what stands there.

        Args:
            if_version: Replace only this version.

        Raises:
            PreconditionFailedError: Another version stands there, or none.
        """

    def create(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object if there is none, durably, in one try (never retried by itself).

        Raises:
            AlreadyExistsError: There is one; it may be the caller's own after a lost answer.
            OutcomeUnknownError: No answer; read the object back.
        """

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return an object's bytes `[start, start + length)`; fewer at its end.

        Raises:
            ObjectNotFoundError: There is none.
        """

    def head(self, key: str) -> ObjectInfo:
        """Return what is known about an object.

        Raises:
            ObjectNotFoundError: There is none.
        """

    def pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[ObjectInfo]]:
        """Yield all visible objects whose key starts with `prefix`, in pages, ordered by the key's UTF-8.

        Args:
            prefix: Any string: a folder's ends in `/`, so that `dataset1` never finds `dataset10`.
            after: Only keys greater than this one.
            page_size: Greatest number of objects in a page, up to 1,000.
        """

    def delete(self, key: str, *, if_version: str | None = None) -> None:
        """Delete an object; one that is not there is deleted already.

        Args:
            if_version: Delete only this version.

        Raises:
            PreconditionFailedError: Another version stands there.
            UnsupportedStoreError: `if_version` on a store without conditional delete.
        """

    def delete_many(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """Delete many objects in few calls; returns those that were left."""

    def begin_upload(
        self,
        key: str,
        token: Token,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Open a pending upload that will be visible at `key`; returns its id.

        Args:
            token: Kept with the upload and with the object that it becomes (S3: metadata `lockgate-token`).
            content_type: MIME type, kept by stores that keep one.
            metadata: Kept by stores that keep some; as `check_metadata` allows.
        """

    def put_part(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> Part:
        """Write one part; the same number again replaces it.

        Args:
            number: From 1 to `capabilities.max_parts`.
            offset: Bytes of all parts before this one.
            data: At least `capabilities.min_part_bytes`, unless it is the last part; may be empty only as
                the single part of an empty file.

        Raises:
            UploadGoneError: The upload is not open.
        """

    def seal_upload(self, key: str, upload_id: str, token: Token, parts: Sequence[Part]) -> PendingUpload:
        """Make all parts durable and return the record by which anyone can complete or abort the upload.

        Raises:
            InvalidInputError: The parts' numbers are not 1, 2, … n.
        """

    def complete_upload(self, pending: PendingUpload, *, if_absent: bool = False) -> ObjectInfo:
        """Make a pending upload visible at its key, whole, in one step.

        A repeated completion may succeed or raise `UploadGoneError`; rely on neither, ask `holds`.

        Args:
            if_absent: Only where no object is.

        Raises:
            UploadGoneError: The upload is not open.
            AlreadyExistsError: `if_absent`, and there is an object. The upload stays open.
            OutcomeUnknownError: No answer; ask `holds`.
        """

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Drop a pending upload; one that is gone is aborted already. Never touches a visible object."""

    def holds(self, pending: PendingUpload) -> bool:
        """Tell whether the object at the pending upload's key is the one that this upload became.

        By owner token and size (S3), or by inode, size and time (local); never by an ETag alone.
        """

    def upload_bytes(self, key: str, upload_id: str) -> int:
        """Return how many bytes an open upload holds, which is what it costs.

        For people who ask: where a listing does not tell the size, this is a request for every upload.

        Raises:
            UploadGoneError: The upload is not open.
        """

    def upload_pages(self, prefix: str = "", *, page_size: int = PAGE) -> Iterator[Sequence[UploadInfo]]:
        """Yield all open uploads whose key starts with `prefix`, in pages, ordered by key."""


def check_key(key: str) -> str:
    """Return the key if it stays under its root on every store.

    Raises:
        InvalidInputError: It is empty, absolute, too long, not in Unicode's NFC form, or has a segment that
            is empty, `.`, `..`, or holds a control character or backslash.
    """
    if not key or len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
        raise InvalidInputError(f"key {key[:80]!r}: must have 1 to {MAX_KEY_BYTES} bytes")
    if unicodedata.normalize("NFC", key) != key:
        raise InvalidInputError(
            f"key {key[:80]!r}: must be in Unicode's NFC form, or two names look the same"
        )
    for segment in key.split("/"):
        if segment in {"", ".", ".."}:
            raise InvalidInputError(f"key {key[:80]!r}: segment {segment!r} could leave the destination")
        if "\\" in segment or any(unicodedata.category(c) in {"Cc", "Cs"} for c in segment):
            raise InvalidInputError(f"key {key[:80]!r}: has a backslash or a control character")
    return key


def check_parts(key: str, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts in order.

    Raises:
        InvalidInputError: Their numbers are not 1, 2, … n.
    """
    ordered = tuple(sorted(parts, key=lambda part: part.number))
    if not ordered or [part.number for part in ordered] != list(range(1, len(ordered) + 1)):
        raise InvalidInputError(f"upload of {key!r}: parts must be numbered 1, 2, … without a gap")
    return ordered
