"""Open a store by URL or path: `s3://bucket/prefix`, `file:///dir`, or a plain path."""

from __future__ import annotations

import os
import re
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS, parse_failpoints
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import Store, check_key

if TYPE_CHECKING:
    from lockgate.storage_core.settings import Settings

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_USER: Final = re.compile(r"(?<=://)(?:[^/]*:.*|[^/]*)@", re.DOTALL)
"""A user and a password, which a URL of another program may have; no message shows them."""
_FORMS: Final = "write s3://bucket/prefix, file:///directory, or a plain path"


def parse_destination(url: str) -> str:
    """Return the canonical form of a destination.

    Names are not percent-decoded: `%` and `#` are ordinary characters, as in Spark and fsspec.

    Args:
        url: `s3://bucket[/prefix]`, `file:///dir`, or a path, relative to the current directory.

    Returns:
        `s3://bucket[/prefix]` or `file:///dir`, without a trailing slash.

    Raises:
        InvalidInputError: It has none of these forms; the message has the remedy, and no password.
    """
    shown = _USER.sub("", url)
    if not url.strip():
        raise InvalidInputError(f"destination: it is empty; {_FORMS}")
    if "?" in url:
        raise InvalidInputError(
            f"destination {shown!r}: a query (after `?`) has no meaning here; leave it out"
        )
    match = _SCHEME.fullmatch(url)
    if match is None:
        return _local(url, url)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        if not rest.startswith("/"):
            raise InvalidInputError(
                f"destination {shown!r}: {shown.partition('://')[2].partition('/')[0]!r} would be a host; "
                "write three slashes: file:///directory"
            )
        return _local(url, rest)
    if scheme == "s3":
        return _s3(shown, rest)
    hint = "for Hadoop's s3a:// write s3://; " if scheme in {"s3a", "s3n"} else ""
    raise InvalidInputError(f"destination {shown!r}: scheme {scheme!r} is not known; {hint}{_FORMS}")


def open_store(url: str, settings: Settings | None = None) -> Store:
    """Open the store at a destination, without a request to it.

    Args:
        url: Destination; see `parse_destination`.
        settings: Settings, by default from the environment. Their failpoints are armed in this process.

    Raises:
        InvalidInputError: The destination is invalid; the message contains the remedy.
    """
    destination = parse_destination(url)
    settings = load_settings() if settings is None else settings
    if settings.failpoints:
        FAILPOINTS.arm(parse_failpoints(settings.failpoints))
    if destination.startswith("file://"):
        return instrument(LocalStore(Path(destination.removeprefix("file://"))))
    # The import of boto3 takes a third of a second, which local destinations save.
    from lockgate.storage_core.stores.s3.store import S3Store  # noqa: PLC0415

    bucket, _, prefix = destination.removeprefix("s3://").partition("/")
    return instrument(S3Store(bucket, prefix, settings))


def _local(url: str, path: str) -> str:
    if "\0" in path or any("\udc80" <= letter <= "\udcff" for letter in path):
        raise InvalidInputError(f"destination {url!r}: the path is not printable UTF-8; choose another")
    # abspath, not resolve: a destination that is a symbolic link keeps its name.
    absolute = os.path.abspath(path)  # noqa: PTH100
    return f"file:///{absolute.lstrip('/')}"


def _s3(url: str, rest: str) -> str:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        bucket = url.partition("://")[2].partition("/")[0]
        problem = f"{bucket!r} is not a bucket name" if bucket else "the bucket is missing"
        raise InvalidInputError(f"destination {url!r}: {problem}; write s3://bucket/prefix")
    prefix = prefix.rstrip("/")
    if not prefix:
        return f"s3://{bucket}"
    try:
        check_key(prefix)
    except InvalidInputError as error:
        raise InvalidInputError(f"destination {url!r}: {error}") from None
    return f"s3://{bucket}/{prefix}"


_LOCAL: Final = "file://"


def canonical_url(store: Store) -> str:
    """Return a destination's URL, with symbolic links in a local path resolved."""
    if not store.url.startswith(_LOCAL):
        return store.url
    # `Path.resolve` would raise on a loop of links; opening the destination reports it.
    return f"{_LOCAL}{realpath(store.url.removeprefix(_LOCAL))}"
