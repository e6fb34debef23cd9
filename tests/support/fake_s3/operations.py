"""The operations of the fake, and what each accepts: everything else is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.fake_s3.refusal import Refusal, unknown
from tests.support.fake_s3.wire import Request

_ALWAYS: Final = frozenset({"x-amz-content-sha256", "x-amz-date", "x-amz-sdk-checksum-algorithm"})
_CRC: Final = frozenset({"x-amz-checksum-crc32", "x-amz-trailer", "x-amz-decoded-content-length"})
_ATTRIBUTES: Final = frozenset(
    {
        "x-amz-storage-class",
        "x-amz-acl",
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id",
    }
)
_MAX_KEY_BYTES: Final = 1024


@dataclass(frozen=True)
class Operation:
    """The parameters and headers that one operation accepts.

    Attributes:
        query: Parameters that it knows; those that end in `=` must be there.
        headers: The `x-amz-` and conditional headers that it knows beside those of every request.
        metadata: Whether it takes `x-amz-meta-` headers.
        needs_headers: Headers that must be there.
    """

    method: str
    about_a_key: bool
    query: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    metadata: bool = False
    needs_headers: frozenset[str] = frozenset()


def _of(
    method: str,
    *,
    key: bool,
    needs: str = "",
    query: str = "",
    headers: frozenset[str] = frozenset(),
    metadata: bool = False,
    needs_headers: frozenset[str] = frozenset(),
) -> Operation:
    needed = frozenset(needs.split())
    known = needed | frozenset(query.split())
    return Operation(method, key, known, needed, headers, metadata, needs_headers)


OPERATIONS: Final[Mapping[str, Operation]] = {
    "CreateMultipartUpload": _of(
        "POST",
        key=True,
        needs="uploads",
        headers=_ATTRIBUTES | {"x-amz-checksum-algorithm"},
        metadata=True,
    ),
    "CompleteMultipartUpload": _of(
        "POST",
        key=True,
        needs="uploadId",
        headers=frozenset({"if-none-match", "if-match", "x-amz-mp-object-size"}),
    ),
    "UploadPartCopy": _of(
        "PUT",
        key=True,
        needs="uploadId partNumber",
        needs_headers=frozenset({"x-amz-copy-source"}),
        headers=frozenset({"x-amz-copy-source", "x-amz-copy-source-range"}),
    ),
    "UploadPart": _of("PUT", key=True, needs="uploadId partNumber", headers=_CRC),
    "AbortMultipartUpload": _of("DELETE", key=True, needs="uploadId"),
    "ListParts": _of("GET", key=True, needs="uploadId", query="part-number-marker max-parts"),
    "PutObject": _of(
        "PUT", key=True, headers=_ATTRIBUTES | _CRC | {"if-none-match", "if-match"}, metadata=True
    ),
    "GetObject": _of("GET", key=True, headers=frozenset({"x-amz-checksum-mode"})),
    "HeadObject": _of("HEAD", key=True, headers=frozenset({"x-amz-checksum-mode"})),
    "DeleteObject": _of("DELETE", key=True, headers=frozenset({"if-match"})),
    "DeleteObjects": _of("POST", key=False, needs="delete", headers=_CRC),
    "ListMultipartUploads": _of(
        "GET",
        key=False,
        needs="uploads",
        query="prefix key-marker upload-id-marker max-uploads encoding-type",
    ),
    "ListObjectsV2": _of(
        "GET",
        key=False,
        needs="list-type",
        query="prefix start-after continuation-token max-keys encoding-type",
    ),
    "GetBucketLifecycleConfiguration": _of("GET", key=False, needs="lifecycle"),
    "GetBucketVersioning": _of("GET", key=False, needs="versioning"),
}
"""In order of how much they need: the first that fits is meant."""


def operation_of(request: Request) -> str:
    """Name the operation; whatever fits none of the table is refused by the method's own name."""
    for name, operation in OPERATIONS.items():
        if (
            operation.method == request.method
            and operation.about_a_key == bool(request.key)
            and operation.needs <= request.query.keys()
            and operation.needs_headers <= request.headers.keys()
        ):
            return name
    return f"{request.method} {'object' if request.key else 'bucket'} {' '.join(request.query)}".strip()


def check_known(name: str, request: Request) -> None:
    """Refuse what the operation's row of the table does not name, and an unsigned request."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise unknown(f"the operation {name}")
    for parameter in request.query:
        if parameter not in operation.query:
            raise unknown(f"the parameter {parameter} of {name}")
    for header in request.headers:
        if header.startswith("x-amz-meta-") and operation.metadata:
            continue
        judged = header.startswith(("x-amz-", "if-"))
        if judged and header not in _ALWAYS | operation.headers:
            raise unknown(f"the header {header} of {name}")
    if not request.headers.get("authorization", "").startswith("AWS4-HMAC-SHA256 "):
        raise Refusal(403, "AccessDenied", "the request is not signed")
    if len(request.key.encode()) > _MAX_KEY_BYTES:
        raise Refusal(400, "KeyTooLongError", "Your key is too long")
