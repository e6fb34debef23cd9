"""Checksums of a request's body: each one that is present must be correct."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable

from tests.support.fake_s3.chunked import UNSIGNED
from tests.support.fake_s3.refusal import Refusal, unknown
from tests.support.fake_s3.state import Checksum
from tests.support.fake_s3.wire import Request

_CRC32 = "x-amz-checksum-crc32"
_SHA256 = "x-amz-content-sha256"
_UNSIGNED = frozenset({"UNSIGNED-PAYLOAD", UNSIGNED})


def check_body(request: Request) -> str | None:
    """Check every sum of the body that the request names; returns its CRC-32, if it carries one."""
    body, headers = request.body, request.headers
    length = headers.get("content-length")
    if length is not None and int(length) != len(body):
        raise Refusal(400, "IncompleteBody", "The body is not as long as its header says")
    md5 = headers.get("content-md5")
    if md5 is not None and _decoded(md5) != hashlib.md5(body, usedforsecurity=False).digest():
        raise Refusal(400, "BadDigest", "The Content-MD5 you specified did not match what we received")
    sha256 = headers.get(_SHA256, "UNSIGNED-PAYLOAD")
    if sha256 not in _UNSIGNED and sha256.startswith("STREAMING-"):
        raise unknown(f"a body sent as {sha256}")
    if sha256 not in _UNSIGNED and sha256 != hashlib.sha256(body).hexdigest():
        raise Refusal(400, "XAmzContentSHA256Mismatch", "The provided header does not match the body")
    algorithm = headers.get("x-amz-sdk-checksum-algorithm", "CRC32")
    if algorithm != "CRC32":
        raise unknown(f"the checksum algorithm {algorithm}")
    crc32 = headers.get(_CRC32)
    if crc32 is not None and crc32 != crc32_of(body):
        raise Refusal(400, "BadDigest", "The CRC32 you specified did not match the calculated checksum")
    return crc32


def crc32_of(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def composite(checksums: Iterable[str]) -> Checksum:
    """The checksum of an upload: that of its parts' checksums, and how many there were."""
    decoded = [_decoded(checksum) for checksum in checksums]
    return Checksum(f"{crc32_of(b''.join(decoded))}-{len(decoded)}", "COMPOSITE")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Refusal(400, "InvalidDigest", "A checksum is not base64") from None
