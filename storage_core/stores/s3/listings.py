"""Listings of S3: the objects and the open uploads below a prefix, whose answers differ between servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockgate.storage_core.stores.protocol import PAGE, ObjectInfo, UploadInfo
from lockgate.storage_core.stores.s3.request_policy import RequestPolicy
from lockgate.storage_core.stores.s3.whole_answer import CutAnswerError

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import (
        ListMultipartUploadsOutputTypeDef,
        ListMultipartUploadsRequestTypeDef,
        ListObjectsV2OutputTypeDef,
        ListObjectsV2RequestTypeDef,
    )


def object_pages(
    requests: RequestPolicy, prefix: str, *, after: str, page_size: int
) -> Iterator[Sequence[ObjectInfo]]:
    """Send ListObjectsV2, one request for each page; see `Store.pages`."""
    request: ListObjectsV2RequestTypeDef = {
        "Bucket": requests.bucket,
        "Prefix": requests.prefix + prefix,
        "MaxKeys": max(1, min(page_size, PAGE)),
    }
    if after:
        request["StartAfter"] = requests.prefix + after
    while True:
        answer, page = requests.read(
            "ListObjectsV2",
            prefix,
            lambda clients: _page(requests, clients.repeating.list_objects_v2(**request)),
        )
        if page:
            yield page
        if not answer.get("IsTruncated"):
            return
        request["ContinuationToken"] = answer["NextContinuationToken"]


def _page(
    requests: RequestPolicy, answer: ListObjectsV2OutputTypeDef
) -> tuple[ListObjectsV2OutputTypeDef, list[ObjectInfo]]:
    """Return the answer to a listing, and what it lists."""
    _check_next(answer, "NextContinuationToken")
    return answer, [
        ObjectInfo(
            key=found["Key"].removeprefix(requests.prefix),
            size=found["Size"],
            version=found["ETag"].strip('"'),
            modified_s=found["LastModified"].timestamp(),
        )
        for found in answer.get("Contents", [])
        # Some tools create an empty object as a folder marker; the destination's is not a file in it.
        if found["Key"] != requests.prefix
    ]


def upload_pages(requests: RequestPolicy, prefix: str, *, after: str) -> Iterator[Sequence[UploadInfo]]:
    """Send ListMultipartUploads, one request for each page; see `Store.upload_pages`."""
    request: ListMultipartUploadsRequestTypeDef = {
        "Bucket": requests.bucket,
        "Prefix": requests.prefix + prefix,
    }
    if after:
        request["KeyMarker"] = requests.prefix + after
    while True:
        answer, found = requests.read(
            "ListMultipartUploads",
            prefix,
            lambda clients: _uploads(requests, clients.repeating.list_multipart_uploads(**request), after),
        )
        # S3 returns sorted uploads; some look-alikes do not.
        found.sort(key=lambda upload: (upload.key, upload.begun_s))
        if not answer.get("IsTruncated"):  # rclone omits it if it is false
            yield found
            return
        # A page may end between two uploads of one key. The next request starts after the previous key,
        # because some look-alikes refuse UploadIdMarker, and skip the key's other uploads without it.
        complete = [upload for upload in found if upload.key != found[-1].key]
        if complete:
            request.pop("UploadIdMarker", None)
            request["KeyMarker"] = requests.prefix + complete[-1].key
        else:
            request["KeyMarker"] = answer["NextKeyMarker"]
            request["UploadIdMarker"] = answer["NextUploadIdMarker"]
        yield complete or found


def _uploads(
    requests: RequestPolicy, answer: ListMultipartUploadsOutputTypeDef, after: str
) -> tuple[ListMultipartUploadsOutputTypeDef, list[UploadInfo]]:
    """Return the answer to a listing of uploads, and what it lists behind a key."""
    found = [
        UploadInfo(
            key=upload["Key"].removeprefix(requests.prefix),
            upload_id=upload["UploadId"],
            begun_s=upload["Initiated"].timestamp(),
        )
        for upload in answer.get("Uploads", [])
    ]
    # Some look-alikes begin with the marker's own key.
    found = [upload for upload in found if upload.key > after]
    if not found or all(upload.key == found[0].key for upload in found):
        _check_next(answer, "NextKeyMarker", "NextUploadIdMarker")
    return answer, found


def _check_next(answer: Mapping[str, Any], *markers: str) -> None:
    """Check that an answer with a next page says where that begins."""
    if answer.get("IsTruncated") and any(marker not in answer for marker in markers):
        raise CutAnswerError(error="it does not name its next page")
