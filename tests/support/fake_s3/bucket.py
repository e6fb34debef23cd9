"""The bucket that operations work on: its state, options, clock and unique ids."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final

from lockgate.storage_core.clock import Clock
from tests.support.fake_s3.options import Options
from tests.support.fake_s3.refusal import Refusal
from tests.support.fake_s3.state import Attributes, State
from tests.support.fake_s3.wire import Request

_STORAGE_CLASSES: Final = frozenset(
    {"STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "GLACIER", "DEEP_ARCHIVE"}
)
_META: Final = "x-amz-meta-"
_MAX_METADATA_BYTES: Final = 2048


@dataclass
class Bucket:
    """One bucket; every operation runs under the server's lock."""

    options: Options
    clock: Clock
    state: State = field(default_factory=State)
    _serial: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_upload_id(self) -> str:
        """Return a random id greater than all earlier ones: S3 sorts uploads by age *and* continues by id."""
        return f"{next(self._serial):08d}.{secrets.token_urlsafe(24)}"

    def etag_of(self, body: bytes, attributes: Attributes) -> str:
        """The MD5 of a plain object; for an encrypted one, an opaque value."""
        if attributes.encryption:
            return secrets.token_hex(16)
        return hashlib.md5(body, usedforsecurity=False).hexdigest()


def attributes_of(request: Request) -> Attributes:
    """Read what is to stay with an object from the headers that begin it."""
    metadata = {
        name.removeprefix(_META): value for name, value in request.headers.items() if name.startswith(_META)
    }
    if sum(len(name) + len(value) for name, value in metadata.items()) > _MAX_METADATA_BYTES:
        raise Refusal(400, "MetadataTooLarge", "Your metadata headers exceed the maximum allowed size")
    storage_class = request.headers.get("x-amz-storage-class", "STANDARD")
    if storage_class not in _STORAGE_CLASSES:
        raise Refusal(400, "InvalidStorageClass", "The storage class you specified is not valid")
    encryption = {
        name: value for name, value in request.headers.items() if name.startswith("x-amz-server-side-")
    }
    kinds = {"aws:kms"} if len(encryption) > 1 else {"aws:kms", "AES256"}
    if encryption and encryption.get("x-amz-server-side-encryption") not in kinds:
        raise Refusal(400, "InvalidArgument", "A key is named, but not that it is to encrypt")
    return Attributes(
        metadata=metadata,
        content_type=request.headers.get("content-type") or "binary/octet-stream",
        storage_class=storage_class,
        encryption=encryption,
    )


def headers_of(attributes: Attributes, etag: str, modified_s: float) -> Mapping[str, str]:
    """Return the headers of a GET or HEAD response."""
    headers = {
        "ETag": f'"{etag}"',
        "Last-Modified": formatdate(modified_s, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": attributes.content_type,
        **attributes.encryption,
        **{f"{_META}{name}": value for name, value in attributes.metadata.items()},
    }
    if attributes.storage_class != "STANDARD":
        headers["x-amz-storage-class"] = attributes.storage_class
    return headers
