"""Conversion of botocore's prepared requests and of the fake's responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from botocore.awsrequest import AWSResponse

from tests.support.fake_s3.chunked import unchunked


@dataclass(frozen=True)
class Request:
    """One HTTP request; the names of headers in lower case.

    Attributes:
        bucket: First part of the path.
        key: The rest of it, decoded; empty for a request about the bucket.
    """

    method: str
    url: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class _Raw(BytesIO):
    """The answer's body as botocore takes it from urllib3."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()


def read_request(prepared: Any) -> Request:
    url = urlsplit(prepared.url)
    bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
    headers = {name.lower(): _text(value) for name, value in prepared.headers.items()}
    body = _bytes(prepared.body)
    if headers.get("content-encoding") == "aws-chunked":
        body, trailers = unchunked(body)
        headers = {**headers, **trailers, "content-length": headers["x-amz-decoded-content-length"]}
    return Request(
        method=prepared.method,
        url=prepared.url,
        bucket=bucket,
        key=key,
        query=dict(parse_qsl(url.query, keep_blank_values=True)),
        headers=headers,
        body=body,
    )


def to_botocore(request: Request, answer: Answer, now_s: float) -> AWSResponse:
    headers = {
        "Date": formatdate(now_s, usegmt=True),
        "Content-Length": str(len(answer.body)),
        "x-amz-request-id": "fake",
        **answer.headers,
    }
    body = b"" if request.method == "HEAD" else answer.body
    return AWSResponse(request.url, answer.status, headers, _Raw(body))


def xml(root: str, *inner: str) -> bytes:
    """Return a document; what is inside must be escaped already, by `tag`."""
    return f'<?xml version="1.0" encoding="UTF-8"?><{root}>{"".join(inner)}</{root}>'.encode()


def tag(name: str, value: object) -> str:
    return f"<{name}>{escape(str(value))}</{name}>"


def error(status: int, code: str, message: str) -> Answer:
    return Answer(status, {"Content-Type": "application/xml"}, error_document(code, message))


def error_document(code: str, message: str) -> bytes:
    return xml("Error", tag("Code", code), tag("Message", message))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(body: Any) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    if isinstance(body, (str, bytearray)):
        return body.encode() if isinstance(body, str) else bytes(body)
    data: bytes = body.read()
    body.seek(0)
    return data
