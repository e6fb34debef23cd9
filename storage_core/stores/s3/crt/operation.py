"""Operation: where the parameters and results of one kind of S3 request stand in its HTTP messages.

The places come from botocore's service model, so parameters and results have boto3's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlencode
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from botocore.model import ServiceModel, Shape

NAMES: Final = {
    "abort_multipart_upload": "AbortMultipartUpload",
    "complete_multipart_upload": "CompleteMultipartUpload",
    "create_multipart_upload": "CreateMultipartUpload",
    "delete_object": "DeleteObject",
    "get_object": "GetObject",
    "head_object": "HeadObject",
    "list_multipart_uploads": "ListMultipartUploads",
    "put_object": "PutObject",
    "upload_part": "UploadPart",
}
"""The operations that CRT sends, by the name of boto3's method."""

_SAFE_IN_KEYS: Final = "/~"
_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
METADATA: Final = "x-amz-meta-"
"""Prefix of the headers with an object's metadata."""


@dataclass(frozen=True)
class Message:
    """The HTTP request of an operation, without host and signature.

    Attributes:
        method: HTTP method.
        path: Path below the bucket with the query, percent-encoded; begins with a slash if it has a key.
        headers: Names and values.
        body: May be empty.
        is_verified: Whether the answer's body is compared with a checksum that S3 keeps, as the caller asks
            by `ChecksumMode`; a range has none.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_verified: bool = False


@dataclass(frozen=True)
class Operation:
    """One kind of request.

    Attributes:
        name: S3's name.
        method: HTTP method.
        subresource: Constant part of the query, e.g. `uploads`; may be empty.
        headers: Header of each parameter that is sent as one.
        queries: Query parameter of each parameter that is sent as one.
        payload: Parameter that is the body; may be empty.
        answer_headers: Name of the result in each header of the answer, in lower case.
        fields: Name of the result in each element of the document; empty if the answer has no document.
        lists: Name of the result in each element of the document that is repeated.
        has_metadata: Whether results hold the object's metadata.
        has_stream: Whether the answer's body is the object's data.
    """

    name: str
    method: str
    subresource: str
    headers: Mapping[str, str]
    queries: Mapping[str, str]
    payload: str
    answer_headers: Mapping[str, str]
    fields: Mapping[str, str]
    lists: Mapping[str, str]
    has_metadata: bool
    has_stream: bool

    @classmethod
    def of(cls, model: ServiceModel, name: str) -> Self:
        """Read an operation from botocore's model."""
        operation = model.operation_model(name)
        given: Mapping[str, Shape] = operation.input_shape.members if operation.input_shape else {}
        results: Mapping[str, Shape] = operation.output_shape.members if operation.output_shape else {}
        payload = operation.input_shape.serialization.get("payload", "") if operation.input_shape else ""
        return cls(
            name=name,
            method=operation.http["method"],
            subresource=operation.http["requestUri"].partition("?")[2],
            headers=_placed(given, "header"),
            queries=_placed(given, "querystring"),
            payload=payload,
            answer_headers={place.lower(): result for result, place in _placed(results, "header").items()},
            fields={} if operation.has_streaming_output else _elements(results, repeated=False),
            lists={} if operation.has_streaming_output else _elements(results, repeated=True),
            has_metadata="Metadata" in results,
            has_stream=operation.has_streaming_output,
        )

    def message(self, parameters: Mapping[str, Any]) -> Message:
        """Return the HTTP request for parameters with boto3's names; `Bucket` is not part of it."""
        headers: list[tuple[str, str]] = []
        query: list[tuple[str, str]] = []
        body = b""
        for parameter, value in parameters.items():
            if parameter == self.payload:
                body = _body(value)
            elif place := self.headers.get(parameter):
                headers.append((place, str(value)))
            elif place := self.queries.get(parameter):
                query.append((place, str(value)))
            elif parameter == "Metadata":
                headers += [(METADATA + name, text) for name, text in value.items()]
            elif parameter not in {"Bucket", "Key"}:
                raise TypeError(f"{self.name} has no parameter {parameter}")
        parts = [self.subresource] if self.subresource else []
        parts += [urlencode(query, quote_via=quote)] if query else []
        path = "/" + quote(str(parameters["Key"]), safe=_SAFE_IN_KEYS) if "Key" in parameters else ""
        return Message(
            self.method,
            f"{path}?{'&'.join(parts)}" if parts else path,
            tuple(headers),
            body,
            is_verified="ChecksumMode" in parameters and "Range" not in parameters,
        )


def _body(value: Any) -> bytes:
    body: bytes = _parts_document(value["Parts"]) if isinstance(value, Mapping) else bytes(value)
    return body


def _parts_document(parts: Iterable[Mapping[str, object]]) -> bytes:
    """Return the body of CompleteMultipartUpload."""
    listed = (
        "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in part.items()) for part in parts
    )
    inner = "".join(f"<Part>{fields}</Part>" for fields in listed)
    return f'<CompleteMultipartUpload xmlns="{_NAMESPACE}">{inner}</CompleteMultipartUpload>'.encode()


def _elements(members: Mapping[str, Shape], *, repeated: bool) -> dict[str, str]:
    """Return the name of each member that stands in the document, by that of its element."""
    return {
        shape.serialization.get("name", name): name
        for name, shape in members.items()
        if "location" not in shape.serialization and (shape.type_name == "list") == repeated
    }


def _placed(members: Mapping[str, Shape], location: str) -> dict[str, str]:
    return {
        name: shape.serialization.get("name", name)
        for name, shape in members.items()
        if shape.serialization.get("location") == location
    }
