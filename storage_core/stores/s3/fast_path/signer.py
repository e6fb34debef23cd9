"""Signature version 4 for S3, over text that is canonical already.

botocore's own signer spends most of its time on making things canonical, for any service and any request.
What is signed here was put together for it: header values without a needless space, a path that is quoted.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

UNSIGNED: Final = "UNSIGNED-PAYLOAD"
NOT_SIGNED: Final = frozenset({"expect", "user-agent"})
"""Headers, in lower case, that proxies may change or take away."""


class Signable(NamedTuple):
    """What of a request a signature covers.

    Attributes:
        path: As it is sent, quoted.
        query: As it is sent, without the question mark.
        headers: Names in lower case, `host` and `x-amz-date` among them.
        payload: SHA-256 of the body as hexadecimal digits, or `UNSIGNED`.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    payload: str


class Signer:
    """Signs for S3 in one region; safe to use from several threads.

    Args:
        region: Which the endpoint believes itself to be in.
    """

    def __init__(self, region: str) -> None:
        self._region = region
        self._last: tuple[tuple[str, str], bytes] | None = None

    def authorization(self, request: Signable, access_key: str, secret_key: str) -> str:
        """Return the value of the header `Authorization`."""
        names = sorted(request.headers)
        signed = ";".join(names)
        said = "\n".join(
            (
                request.method,
                request.path,
                canonical_query(request.query),
                *(f"{name}:{request.headers[name]}" for name in names),
                "",
                signed,
                request.payload,
            )
        )
        at = request.headers["x-amz-date"]
        scope = f"{at[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{sha256(said.encode()).hexdigest()}"
        signature = hmac.digest(self._key(secret_key, at[:8]), text.encode(), "sha256").hex()
        return (
            f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )

    def _key(self, secret_key: str, day: str) -> bytes:
        """Return the key of a day; the last one is kept, for four in five digests of a signature make it."""
        last = self._last
        if last is not None and last[0] == (secret_key, day):
            return last[1]
        key = f"AWS4{secret_key}".encode()
        for part in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._last = (secret_key, day), key
        return key


def canonical_query(query: str) -> str:
    """Return a quoted query in the order in which it is signed."""
    if not query:
        return ""
    pairs = sorted(pair.partition("=")[::2] for pair in query.split("&"))
    return "&".join(f"{name}={value}" for name, value in pairs)
