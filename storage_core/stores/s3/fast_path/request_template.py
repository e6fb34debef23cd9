"""What boto3 makes of a call, learned from one that it made, so that the next one like it is made at once.

Between the parameters of a call and the request that is sent stand rules for endpoints, addressing, checksums
and signatures, and whatever else a configuration asks for. None of them is repeated here. A request that
boto3 sent is taken apart; put together again from what was learned, for the same parameters and the same
moment, it has to come out the same to the last letter of its signature. Otherwise nothing was learned.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self
from urllib.parse import urlsplit

from botocore.awsrequest import AWSPreparedRequest, HeadersDict
from botocore.credentials import Credentials
from botocore.utils import percent_encode_sequence

from lockgate.storage_core.stores.s3.fast_path.signer import NOT_SIGNED, UNSIGNED, Signable, Signer

EXPECT_BYTES: Final = 2**20
"""Bodies from this size on wait for the server's consent: it may spare sending them for a round trip."""

_MADE_ANEW: Final = frozenset(
    {
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "content-length",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
    }
)
_ALWAYS_THE_SAME: Final = frozenset({"expect", "user-agent", "x-amz-checksum-mode"})
_OF_ONE_TRY: Final = frozenset({"amz-sdk-invocation-id", "amz-sdk-request", "expect"})
_OF_ONE_CALL: Final = frozenset(
    {
        "error_code_override",
        "input_params",
        "retries",
        "retry_quota_capacity",
        "s3_redirect",
        "timestamp",
    }
)
_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=.+/\d{8}/([^/]+)/s3/aws4_request, .+")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class LeanRequest(AWSPreparedRequest):
    """A request that was put together from a template.

    Attributes:
        origin: Scheme and authority of its URL.
        host: Whom it is for, as it is signed.
        target: Path and query of its URL.
    """

    body: bytes
    headers: Any
    origin: str
    host: str
    target: str


@dataclass(frozen=True)
class Template:
    """How requests of one kind go to one bucket.

    Attributes:
        origin: Scheme and authority of the URL.
        path: What of its path stands before the key's.
        host: Whom requests are for, as it is signed.
        headers: That every such request has.
        signs_body: Whether the signature covers the body.
        signer: For the bucket's region.
        credentials: boto3's, which it renews by itself.
        context: What botocore's retries and checks know of such a call.
    """

    origin: str
    path: str
    host: str
    headers: Mapping[str, str]
    signs_body: bool
    signer: Signer
    credentials: Credentials
    context: Mapping[str, Any]

    @classmethod
    def learned(
        cls, seen: AWSPreparedRequest, serialized: Mapping[str, Any], credentials: Credentials
    ) -> Self | None:
        """Return the template of a request that boto3 sent.

        Args:
            seen: The request.
            serialized: What botocore's serializer makes of the parameters of its call.
            credentials: With which boto3 signed it.

        Returns:
            None if the request has something that is not understood here.
        """
        headers = {name.lower(): text(value) for name, value in seen.headers.items()}
        scope = _SCOPE.fullmatch(headers.get("authorization", ""))
        target = _target(serialized)
        if scope is None or not seen.url.endswith(target) or not fits(serialized):
            return None
        parts = urlsplit(seen.url.removesuffix(target))
        context: dict[str, Any] = getattr(seen, "context", None) or {}
        origin = f"{parts.scheme}://{parts.netloc}"
        its_own = _MADE_ANEW | {name.lower() for name in serialized["headers"]}
        kept = {name: text(value) for name, value in seen.headers.items() if name.lower() not in its_own}
        if parts.query or not {name.lower() for name in kept} <= _ALWAYS_THE_SAME:
            return None
        template = cls(
            origin=origin,
            path=parts.path,
            host=_host(origin),
            headers=kept,
            signs_body=headers.get("x-amz-content-sha256") != UNSIGNED,
            signer=Signer(scope[1]),
            credentials=credentials,
            context={name: value for name, value in context.items() if name not in _OF_ONE_CALL},
        )
        ours = template.request(serialized, at=headers.get("x-amz-date", ""))
        return template if _same(ours, seen) else None

    def unsigned(self, serialized: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as botocore has it before it signs it."""
        return {
            "method": serialized["method"],
            "url": self.origin + self.path + _target(serialized),
            "headers": {**self.headers, **serialized["headers"]},
            "body": serialized["body"],
        }

    def request(
        self,
        serialized: Mapping[str, Any],
        *,
        at: str,
        marks: Mapping[str, str] | None = None,
        streams: bool = False,
        context: Mapping[str, Any] | None = None,
    ) -> LeanRequest:
        """Return a request, signed.

        Args:
            serialized: What botocore's serializer made of the parameters; it `fits`.
            at: The time, in ISO 8601's basic format.
            marks: Headers of this try that are not signed.
            streams: Whether the answer's body is left for the caller to read.
            context: What botocore's retries and checks know of this call.
        """
        method, body = serialized["method"], serialized["body"]
        target = self.path + _target(serialized)
        credentials = self.credentials.get_frozen_credentials()
        payload = sha256(body).hexdigest() if self.signs_body else UNSIGNED
        headers = {
            **self.headers,
            **serialized["headers"],
            "X-Amz-Date": at,
            "X-Amz-Content-SHA256": payload,
        }
        if credentials.token:
            headers["X-Amz-Security-Token"] = credentials.token
        signed = {
            lower: value for name, value in headers.items() if (lower := name.lower()) not in NOT_SIGNED
        }
        signed["host"] = self.host
        path, _, query = target.partition("?")
        headers["Authorization"] = self.signer.authorization(
            Signable(method, path, query, signed, payload),
            str(credentials.access_key),
            str(credentials.secret_key),
        )
        headers.update(marks or {})
        if method not in {"GET", "HEAD"}:
            headers["Content-Length"] = str(len(body))
        if len(body) < EXPECT_BYTES:
            headers.pop("Expect", None)
        sent: Any = HeadersDict({name: value.encode() for name, value in headers.items()})
        request = LeanRequest(method, self.origin + target, sent, body, streams, context)
        request.origin, request.host, request.target = self.origin, self.host, target
        return request


def fits(serialized: Mapping[str, Any]) -> bool:
    """Tell whether a request's body and headers are as plain as a template takes them to be."""
    return type(serialized["body"]) in {bytes, bytearray} and all(
        type(value) is str and value.isascii() and value.isprintable() and " ".join(value.split()) == value
        for value in serialized["headers"].values()
    )


def _target(serialized: Mapping[str, Any]) -> str:
    path: str = serialized["url_path"]
    query = percent_encode_sequence(serialized["query_string"])
    if not query:
        return path
    return f"{path}{'&' if '?' in path else '?'}{query}"


def _host(origin: str) -> str:
    parts = urlsplit(origin)
    name = parts.hostname or ""
    host = f"[{name}]" if ":" in name else name
    return host if parts.port in {None, _DEFAULT_PORTS.get(parts.scheme)} else f"{host}:{parts.port}"


def _same(ours: LeanRequest, seen: AWSPreparedRequest) -> bool:
    theirs = seen.body.getvalue() if isinstance(seen.body, io.BytesIO) else seen.body
    return (
        (ours.method, ours.url) == (seen.method, seen.url)
        and (theirs or b"") == ours.body
        and _comparable(ours) == _comparable(seen)
    )


def _comparable(request: AWSPreparedRequest) -> dict[str, str]:
    return {
        lower: text(value)
        for name, value in request.headers.items()
        if (lower := name.lower()) not in _OF_ONE_TRY
    }


def text(value: str | bytes) -> str:
    """Return a header's value, which hooks may set as either."""
    return value if isinstance(value, str) else value.decode("latin-1")
