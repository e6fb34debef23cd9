"""Answers of S3: each is checked, so that one that was cut, or is not S3's, is not believed.

HTTP libraries of Python take a connection that ends within the head for the end of the head, and one that
ends behind the head for an empty body. An empty listing or a missing error would be believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from botocore.exceptions import HTTPClientError
from botocore.utils import parse_timestamp

_ROOTS: Final[Mapping[str, Set[bytes]]] = {
    "AbortMultipartUpload": {b"AbortMultipartUploadResult", b"AbortMultipartUploadOutput"},
    "CompleteMultipartUpload": {b"CompleteMultipartUploadResult"},
    "CreateMultipartUpload": {
        b"InitiateMultipartUploadResult",
        b"InitiateMultipartUpload",
    },  # rclone: the second
    "DeleteObject": {b"DeleteObjectResult", b"DeleteObjectOutput"},
    "DeleteObjects": {b"DeleteResult"},
    "ListMultipartUploads": {b"ListMultipartUploadsResult"},
    "ListObjectsV2": {b"ListBucketResult"},
    "ListParts": {b"ListPartsResult", b"ListPartsResponse"},  # moto names the second
    "UploadPartCopy": {b"CopyPartResult", b"CopyObjectResult"},  # older Versity: the second
}
"""Root of the document in an operation's successful answer; a parser refuses a document that is cut.

Another one, such as the page of a proxy, has no listed objects and no errors, and would be believed.
"""

_ROOT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>)?\s*<(?:\w+:)?(\w+)[\s/>]", re.DOTALL)

_EMPTY: Final = frozenset({"AbortMultipartUpload", "DeleteObject"})
"""Operations whose successful answer may lack the document; that of AWS does."""

_CODE: Final = re.compile(rb"<(?:\w+:)?Code>\s*[^\s<]")

_HEADERS: Final = {
    "GetObject": ("etag", "last-modified"),
    "HeadObject": ("content-length", "etag", "last-modified"),
    "PutObject": ("etag",),
    "UploadPart": ("etag",),
}
"""Headers that a successful answer has, in lower case."""

_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

UNREADABLE: Final = "\ufdd0"
"""Stands in a listing for characters that XML cannot hold; Unicode has none there."""

LISTINGS: Final = frozenset({"ListMultipartUploads", "ListObjectsV2"})
_NO_XML: Final = re.compile(
    rb"[\0-\x08\x0b\x0c\x0e-\x1f]"
    rb"|&#0*(?:[0-8]|1[124-9]|2\d|3[01]|6553[45]);|&#x0*(?:[0-8bcef]|1[\da-f]|fff[ef]);",
    re.IGNORECASE,
)

_BODILESS: Final = frozenset({204, 304})


class CutAnswerError(HTTPClientError):
    """An answer that was cut, or is not one of S3. It is no answer: its outcome is unknown."""

    fmt = "The answer was cut, or is not one of S3: {error}"


def check_whole(
    operation: str, status: int, headers: Mapping[str, str], body: bytes | None, *, has_body: bool = True
) -> None:
    """Check length, headers and document of an answer, and that a page is not taken for one.

    Args:
        operation: S3's name of the operation.
        status: HTTP status.
        headers: Headers; names are looked up in lower case.
        body: Body; None if it is read later, by a reader that checks its length.
        has_body: Whether such a request gets a body: not if its method is HEAD.

    Raises:
        CutAnswerError: Something is missing.
    """
    length = headers.get("content-length")
    measured = has_body and status not in _BODILESS
    if status < 200:
        raise CutAnswerError(error=f"it is only an interim answer ({status})")
    if length is not None and not length.isdigit():
        raise CutAnswerError(error="its length is not complete")
    if measured and length is None and "chunked" not in headers.get("transfer-encoding", "").lower():
        raise CutAnswerError(error="it names no length")
    if measured and body is not None and length is not None and length != str(len(body)):
        raise CutAnswerError(error=f"{len(body)} of {length} bytes arrived")
    if status == 404 and has_body and not _is_error(body or b""):
        raise CutAnswerError(error="a 404 without an error of S3 does not say what is missing")
    if status < 300:
        _check_success(operation, status, headers, body)


def _check_success(operation: str, status: int, headers: Mapping[str, str], body: bytes | None) -> None:
    if operation == "GetObject" and status not in {200, 206}:
        raise CutAnswerError(error=f"a status of {status} brings no object")
    for name in _HEADERS.get(operation, ()):
        if name not in headers:
            raise CutAnswerError(error=f"it has no {name}")
    etag = headers.get("etag", "")
    if etag.startswith('"') and (len(etag) < 2 or not etag.endswith('"')):
        raise CutAnswerError(error="its ETag is not complete")
    if body is not None and (roots := _ROOTS.get(operation)) and (body or operation not in _EMPTY):
        found = _ROOT.match(body)
        if found is None or found[1] not in {*roots, b"Error"}:
            raise CutAnswerError(error="its document is not one of S3 for this call")


def _is_error(body: bytes) -> bool:
    """Return whether a document is an error of S3 with a code."""
    found = _ROOT.match(body)
    return found is not None and found[1] == b"Error" and _CODE.search(body) is not None


def check_range(
    answer: Mapping[str, Any], size: int, start: int, length: int | None, *, is_range: bool
) -> None:
    """Check that the answer to a get holds the bytes that were asked for.

    Args:
        answer: boto3's answer.
        size: Length of its body.
        start: Offset of the first byte that was asked for.
        length: Number of bytes that were asked for; None for all to the end.
        is_range: Whether the request named a range.

    Raises:
        CutAnswerError: It holds others.
    """
    parsed = answer["ResponseMetadata"]
    if parsed["HTTPStatusCode"] != 206:
        return
    named = _RANGE.fullmatch(parsed["HTTPHeaders"].get("content-range", ""))
    if named is None or not is_range:
        raise CutAnswerError(
            error="it holds a part of the object and does not say which, or none was asked for"
        )
    first, last, total = (int(number) for number in named.groups())
    end = total if length is None else min(start + length, total)
    if (first, last + 1, size) != (start, end, end - start):
        raise CutAnswerError(error=f"it holds bytes {first} to {last}, which are not those asked for")


def readable(operation: str, body: bytes) -> bytes:
    """Return the document of a listing in a form that a parser of XML accepts; another one unchanged.

    A server that does not encode keys sends control characters in those of other programs.
    """
    return _NO_XML.sub(UNREADABLE.encode(), body) if operation in LISTINGS else body


def make_readable(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Handle the event of a listing that XML cannot hold: botocore has just made an error of it."""
    body = readable(operation_model.name, response_dict["body"])
    if body == response_dict["body"] or _is_error(body):
        return
    response_dict["status_code"] = 200
    before_parse(operation_model, response_dict)  # with the length that the server sent
    headers = {**response_dict["headers"], "content-length": str(len(body))}
    response_dict.update(body=body, headers=headers)


def before_parse(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """Handle botocore's `before-parse` event: check an answer of boto3's."""
    streams = operation_model.has_streaming_output and response_dict["status_code"] < 300
    try:
        check_whole(
            operation_model.name,
            response_dict["status_code"],
            {name.lower(): value for name, value in response_dict["headers"].items()},
            None if streams else response_dict["body"],
            has_body=operation_model.http["method"] != "HEAD",
        )
    except CutAnswerError:
        if streams:
            response_dict["body"].close()
        raise


def timestamp(value: Any) -> datetime:
    """Parse a timestamp, one for each object of a listing: in 1 µs, where botocore's own parser takes 80."""
    if isinstance(value, str) and value.endswith("Z"):
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    return parse_timestamp(value)
