"""Endpoint: where and with which region the requests for a bucket are sent, as boto3 would send them."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from botocore.utils import get_environ_proxies

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.awsrequest import AWSPreparedRequest
    from types_boto3_s3 import S3Client

_KEY: Final = "key"
_SCOPE: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=.+/\d{8}/([^/]+)/s3/aws4_request, .+")


class Endpoint(NamedTuple):
    """The part of a request that is the same for all keys of a bucket.

    Attributes:
        scheme: `http` or `https`.
        host: Host of the URL, with its port unless that is the scheme's.
        path: Path before the key, without a trailing slash.
        region: Region of the signature; None for requests without one.
        signs_data: Whether the signature covers data, too; it always covers a document.
    """

    scheme: str
    host: str
    path: str
    region: str | None
    signs_data: bool = False


class Endpoints:
    """The endpoints of buckets, read from a request that boto3 makes and does not send.

    boto3's rules for endpoints, addressing and access points are not repeated here.

    Args:
        client_in: Returns a boto3 client for a region, or for the configured one.
    """

    def __init__(self, client_in: Callable[[str | None], S3Client]) -> None:
        self._client_in = client_in
        self._known: dict[str, Endpoint | None] = {}
        self._lock = threading.Lock()

    def of(self, bucket: str) -> Endpoint | None:
        """Return the endpoint of a bucket; None if its requests need another signature or a proxy."""
        with self._lock:
            if bucket not in self._known:
                self._known[bucket] = _endpoint(self._client_in(None), bucket)
            return self._known[bucket]

    def moved(self, bucket: str, region: str) -> Endpoint | None:
        """Return the bucket's endpoint in the region that S3 named, from now on."""
        with self._lock:
            self._known[bucket] = _endpoint(self._client_in(region), bucket)
            return self._known[bucket]


class _NotSentError(Exception):
    """Raised in place of sending a request."""


def _endpoint(client: S3Client, bucket: str) -> Endpoint | None:
    seen: list[AWSPreparedRequest] = []

    def keep(request: AWSPreparedRequest, **_: Any) -> None:
        seen.append(request)
        raise _NotSentError

    # botocore emits this event with a complete request, before it opens a connection.
    client.meta.events.register_first("before-send.s3.HeadObject", keep)
    with suppress(_NotSentError):
        client.head_object(Bucket=bucket, Key=_KEY)
    url = urlsplit(seen[0].url)
    # botocore's proxies have a key for each variable that ends in `_proxy`, and it uses that of the scheme.
    if get_environ_proxies(seen[0].url).get(url.scheme) or _crt_takes_proxy(url.scheme, url.hostname or ""):
        return None
    headers: Any = seen[0].headers
    signature = headers.get("Authorization", "")
    scope = _SCOPE.fullmatch(signature if isinstance(signature, str) else signature.decode())
    if signature and scope is None:
        return None
    config: Any = client.meta.config
    wanted = (config.s3 or {}).get("payload_signing_enabled")
    return Endpoint(
        url.scheme,
        url.netloc.rpartition("@")[2],
        url.path.removesuffix(f"/{_KEY}"),
        scope and scope[1],
        signs_data=url.scheme == "http" if wanted is None else wanted,
    )


def _crt_takes_proxy(scheme: str, host: str) -> bool:
    """Return whether CRT's S3 client would go to a proxy, which it takes from the environment by itself.

    It differs from botocore: an empty variable in lower case does not hide that in upper case, and NO_PROXY
    has no ports and no parts of an address.
    """
    if not _set_in_either_case(f"{scheme}_proxy"):
        return False
    excluded = _set_in_either_case("no_proxy")
    names = [name.strip().lower() for name in excluded.split(",")]
    # A name whose last character is a digit is an address.
    domains = tuple(f".{name.strip('.')}" for name in names if name.strip(".") and not name[-1].isdigit())
    return not (excluded == "*" or host in names or f".{host}".endswith(domains))


def _set_in_either_case(variable: str) -> str:
    return os.environ.get(variable) or os.environ.get(variable.upper(), "")
