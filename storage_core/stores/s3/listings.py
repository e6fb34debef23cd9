"""Listings of S3: the objects and the open uploads below a prefix, whose answers differ between servers.

Keys are listed percent-encoded, because XML cannot hold control characters. A key of another program that
cannot be decoded nevertheless is left out with a warning: no call could name it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import unquote_plus

from lockgate.storage_core.stores.protocol import PAGE, ObjectInfo, UploadInfo
from lockgate.storage_core.stores.s3.answers import UNREADABLE, CutAnswerError
from lockgate.storage_core.stores.s3.clients import Clients
from lockgate.storage_core.stores.s3.request_policy import RequestPolicy

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import (
        ListMultipartUploadsRequestTypeDef,
        ListObjectsV2OutputTypeDef,
        ListObjectsV2RequestTypeDef,
    )

LOG: Final = logging.getLogger("lockgate.stores")

_SAME_PAGE: Final = "its next page is the same page again"


def object_pages(
    requests: RequestPolicy, prefix: str, *, after: str, page_size: int
) -> Iterator[Sequence[ObjectInfo]]:
    """Send ListObjectsV2, one request for each page; see `Store.pages`."""
    request: ListObjectsV2RequestTypeDef = {
        "Bucket": requests.bucket,
        "Prefix": requests.prefix + prefix,
        "MaxKeys": max(1, min(page_size, PAGE)),
        "EncodingType": "url",
    }
    if after:
        request["StartAfter"] = requests.prefix + after
    while True:
        answer, page = requests.read(
            "ListObjectsV2",
            prefix,
            lambda clients: _page(
                requests, clients.repeating.list_objects_v2(**request), request.get("ContinuationToken")
            ),
        )
        if page:
            yield page
        if not answer.get("IsTruncated"):
            return
        request["ContinuationToken"] = answer["NextContinuationToken"]


def _page(
    requests: RequestPolicy, answer: ListObjectsV2OutputTypeDef, asked: str | None
) -> tuple[ListObjectsV2OutputTypeDef, list[ObjectInfo]]:
    """Return the answer to a listing, and what it lists."""
    _check_next(answer, "NextContinuationToken")
    if answer.get("IsTruncated") and answer["NextContinuationToken"] == asked:
        raise CutAnswerError(error=_SAME_PAGE)
    return answer, [
        ObjectInfo(
            key=key.removeprefix(requests.prefix),
            size=found["Size"],
            version=found["ETag"].strip('"'),
            modified_s=found["LastModified"].timestamp(),
        )
        for key, found in _named(requests, answer, answer.get("Contents", []))
        # Some tools create an empty object as a folder marker; the destination's is not a file in it.
        if key != requests.prefix
    ]


def _named(
    requests: RequestPolicy, answer: Mapping[str, Any], listed: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    """Yield what a page lists with its key, without what cannot be decoded."""
    for found in listed:
        key = _decoded(answer, found["Key"])
        if key is None:
            LOG.warning(
                "%s: a listing names %.200r, which cannot be decoded: it is left out, and nothing is done "
                "about it; it is not one of Lockgate's",
                f"s3://{requests.bucket}/{requests.prefix}",
                found["Key"],
            )
        else:
            yield key, found


def _decoded(answer: Mapping[str, Any], text: str) -> str | None:
    """Return a key of an answer; None if it cannot be decoded."""
    if UNREADABLE in text:
        return None
    if answer.get("EncodingType") != "url":
        return text
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError:
        return None


def upload_pages(requests: RequestPolicy, prefix: str, *, after: str) -> Iterator[Sequence[UploadInfo]]:
    """Send ListMultipartUploads, one request for each page; see `Store.upload_pages`."""
    first: ListMultipartUploadsRequestTypeDef = {
        "Bucket": requests.bucket,
        "Prefix": requests.prefix + prefix,
        "EncodingType": "url",
    }
    request = first.copy()
    if after:
        request["KeyMarker"] = requests.prefix + after
    while True:
        found, following = requests.read(
            "ListMultipartUploads",
            prefix,
            partial(_uploads, requests, request, after),
        )
        yield found
        if following is None:
            return
        request = {**first, **following}


class _Markers(TypedDict, total=False):
    """Where a page of uploads begins."""

    KeyMarker: str
    UploadIdMarker: str


def _uploads(
    requests: RequestPolicy, request: ListMultipartUploadsRequestTypeDef, after: str, clients: Clients
) -> tuple[list[UploadInfo], _Markers | None]:
    """Return what the answer to a request lists behind a key, and where the next page begins."""
    answer = clients.repeating.list_multipart_uploads(**request)
    found = [
        UploadInfo(
            key=key.removeprefix(requests.prefix),
            upload_id=upload["UploadId"],
            begun_s=upload["Initiated"].timestamp(),
        )
        for key, upload in _named(requests, answer, answer.get("Uploads", []))
    ]
    # Some look-alikes begin with the marker's own key.
    found = [upload for upload in found if upload.key > after]
    # S3 returns sorted uploads; some look-alikes do not.
    found.sort(key=lambda upload: (upload.key, upload.begun_s))
    if not answer.get("IsTruncated"):  # rclone omits it if it is false
        return found, None
    # A page may end between two uploads of one key. The next request starts after the previous key,
    # because some look-alikes refuse UploadIdMarker, and skip the key's other uploads without it.
    complete = [upload for upload in found if upload.key != found[-1].key]
    if complete:
        following = _Markers(KeyMarker=requests.prefix + complete[-1].key)
    else:
        _check_next(answer, "NextKeyMarker", "NextUploadIdMarker")
        at = _decoded(answer, answer["NextKeyMarker"])
        if at is None:
            raise CutAnswerError(error="the name at which its next page begins cannot be decoded")
        following = _Markers(KeyMarker=at, UploadIdMarker=answer["NextUploadIdMarker"])
    if following == {name: at for name, at in request.items() if name in _Markers.__annotations__}:
        raise CutAnswerError(error=_SAME_PAGE)
    return complete or found, following


def _check_next(answer: Mapping[str, Any], *markers: str) -> None:
    """Check that an answer with a next page says where that begins."""
    if answer.get("IsTruncated") and any(marker not in answer for marker in markers):
        raise CutAnswerError(error="it does not name its next page")
