"""Open a store by URL or path: `s3://bucket/prefix`, `file:///dir`, or a plain path."""

from __future__ import annotations

import os
import re
from os.path import expanduser, realpath
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
_USER: Final = re.compile(r"(\A\W*[A-Za-z][\w+.-]*:/{0,2})(?:[^/]*:.*|[^/]*)@", re.DOTALL)
"""A user and a password, which a URL of another program may have; no message shows them."""
_LOCAL: Final = "file://"
_FORMS: Final = "write s3://bucket/prefix, file:///directory, or a plain path"
_OF_OTHERS: Final = {
    "s3a": "for Hadoop's s3a:// write s3://; ",
    "s3n": "for Hadoop's s3n:// write s3://; ",
    "dbfs": "for Databricks' dbfs:/ write the path /dbfs/; ",
}
_ONE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/?)(.*)", re.DOTALL)
"""What begins like a URL. In RFC 3986, too, no relative path begins with a name that has a colon."""
_OF_A_SHELL: Final = re.compile(r"[~$`{<'\"]")
"""Beginning of what only a shell or a template replaces, or of a quoted text."""


def parse_destination(url: str) -> str:
    """Return the canonical form of a destination.

    Names are not percent-decoded: `%` and `#` are ordinary characters, as in Spark and fsspec.

    Args:
        url: `s3://bucket[/prefix]`, `file:///dir`, Java's form of it `file:/dir`, or a path, relative to the
            current directory.

    Returns:
        `s3://bucket[/prefix]` or `file:///dir`, without a trailing slash.

    Raises:
        InvalidInputError: It has none of these forms; the message has the remedy, and no password.
    """
    shown = _USER.sub(r"\1", url)
    if not url.strip():
        raise InvalidInputError(f"destination: it is empty; {_FORMS}")
    if url != url.strip():
        raise _spaced(shown)
    found = _parsed(url, shown)
    if found != found.rstrip():
        raise _spaced(found)
    return found


def _spaced(shown: str) -> InvalidInputError:
    return InvalidInputError(
        f"destination {shown!r}: it begins or ends with a space; write {shown.strip()!r}"
    )


def _parsed(url: str, shown: str) -> str:
    if "?" in url:
        raise InvalidInputError(
            f"destination {shown!r}: a query (after `?`) has no meaning here; leave it out"
        )
    match = _SCHEME.fullmatch(url)
    if match is None:
        return _local(url, _path(url, shown))
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
    raise _unknown_scheme(scheme, shown, _FORMS)


def _path(text: str, shown: str) -> str:
    """Return the path that a destination without `://` means: never a folder that only looks like a URL."""
    if (match := _ONE_SLASH.fullmatch(text)) is not None:
        scheme = match[1].lower()
        if scheme == "file" and match[2]:  # as Java writes it
            return f"/{match[3]}"
        if scheme in {"s3", "s3a", "s3n"}:  # pathlib makes one slash of two
            meant = shown.partition(":")[2].lstrip("/")
            raise InvalidInputError(f"destination {shown!r}: it would be a folder; write s3://{meant}")
        raise _unknown_scheme(scheme, shown, f"{_FORMS}, such as {f'./{shown}'!r}")
    if _OF_A_SHELL.match(text) or ("://" in text and not text.startswith(("/", "."))):
        meant = expanduser(text)  # noqa: PTH111 - pathlib raises for an unknown user
        raise InvalidInputError(
            f"destination {shown!r}: it has a meaning only in a shell or a template, and would be a folder "
            f"of this name; write {'what it stands for' if meant == text else meant}, or ./NAME for a folder"
        )
    return text


def _unknown_scheme(scheme: str, shown: str, forms: str) -> InvalidInputError:
    hint = _OF_OTHERS.get(scheme, "")
    return InvalidInputError(f"destination {shown!r}: scheme {scheme!r} is not known; {hint}{forms}")


def parse_directory(path: str) -> str:
    """Return the absolute path of a directory, given as a path or as `file:///dir`.

    Raises:
        InvalidInputError: It is none; the message has the remedy.
    """
    destination = parse_destination(path)
    if not destination.startswith(_LOCAL):
        raise InvalidInputError(
            f"directory {destination!r}: it is on S3; name one that all workers can access"
        )
    return destination.removeprefix(_LOCAL)


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
    if destination.startswith(_LOCAL):
        return instrument(LocalStore(Path(destination.removeprefix(_LOCAL))))
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


def canonical_url(store: Store) -> str:
    """Return a destination's URL, with symbolic links in a local path resolved."""
    if not store.url.startswith(_LOCAL):
        return store.url
    # `Path.resolve` would raise on a loop of links; opening the destination reports it.
    return f"{_LOCAL}{realpath(store.url.removeprefix(_LOCAL))}"
