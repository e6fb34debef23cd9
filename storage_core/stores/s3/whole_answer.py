"""Whole answer: check that an answer of S3 arrived completely, before it is believed.

HTTP libraries of Python take a connection that ends within the head for the end of the head, and one that
ends behind the head for an empty body. An empty listing or a missing error would be believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import HTTPClientError

_DOCUMENTS: Final = frozenset(
    {
        "CompleteMultipartUpload",
        "CreateMultipartUpload",
        "DeleteObjects",
        "ListMultipartUploads",
        "ListObjectsV2",
        "ListParts",
    }
)
"""Operations whose successful answer holds an XML document; a parser refuses one that is cut."""

_HEADERS: Final = {
    "HeadObject": ("content-length", "etag", "last-modified"),
    "PutObject": ("etag",),
    "UploadPart": ("etag",),
}
"""Headers that a successful answer has, in lower case."""

_BODILESS: Final = frozenset({204, 304})


class CutAnswerError(HTTPClientError):
    """An answer that did not arrive completely. It is no answer: its outcome is unknown."""

    fmt = "The answer was cut: {error}"


def check_whole(
    operation: str, status: int, headers: Mapping[str, str], body: bytes | None, *, has_body: bool = True
) -> None:
    """Check length, headers and document of an answer.

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
    if status >= 300:
        return
    for name in _HEADERS.get(operation, ()):
        if name not in headers:
            raise CutAnswerError(error=f"it has no {name}")
    etag = headers.get("etag", "")
    if etag.startswith('"') and (len(etag) < 2 or not etag.endswith('"')):
        raise CutAnswerError(error="its ETag is not complete")
    if operation in _DOCUMENTS and body is not None and not body.strip():
        raise CutAnswerError(error="it holds no document")


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
