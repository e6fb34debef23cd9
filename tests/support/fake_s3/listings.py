"""Listings, of objects, of open uploads and of their parts, in pages as small as the options want them."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from urllib.parse import quote

from tests.support.fake_s3.bucket import Bucket
from tests.support.fake_s3.refusal import Refusal, unknown
from tests.support.fake_s3.state import StoredObject, StoredPart, Upload
from tests.support.fake_s3.uploads import open_upload
from tests.support.fake_s3.wire import Answer, Request, tag, xml


def list_objects_v2(bucket: Bucket, request: Request) -> Answer:
    query = request.query
    if query["list-type"] != "2" or query.get("encoding-type") != "url":
        raise unknown(f"a listing of type {query['list-type']}, encoded as {query.get('encoding-type')}")
    prefix, start_after = query.get("prefix", ""), query.get("start-after", "")
    token = query.get("continuation-token")
    after = start_after if token is None else _key_in(token)
    keys = sorted(
        (key for key in bucket.state.objects if key.startswith(prefix) and key.encode() > after.encode()),
        key=str.encode,
    )
    page = keys[: _page_size(request, "max-keys", bucket)]
    more = len(keys) > len(page)
    return Answer(
        body=xml(
            "ListBucketResult",
            tag("Name", request.bucket),
            tag("Prefix", quote(prefix)),
            tag("EncodingType", "url"),
            tag("KeyCount", len(page)),
            tag("MaxKeys", query.get("max-keys", 1000)),
            tag("IsTruncated", _word(more)),
            tag("NextContinuationToken", _token_of(page[-1])) if more else "",
            *(_contents(key, bucket.state.objects[key]) for key in page),
        )
    )


def list_multipart_uploads(bucket: Bucket, request: Request) -> Answer:
    prefix, after_key = request.query.get("prefix", ""), request.query.get("key-marker", "")
    # Without a key, S3 ignores the upload id to continue from.
    after_id = request.query.get("upload-id-marker", "") if after_key else ""
    found = sorted(
        (upload for upload in bucket.state.uploads.values() if upload.key.startswith(prefix)),
        key=lambda upload: (upload.key.encode(), upload.begun_s, upload.upload_id),
    )
    left = [upload for upload in found if _is_behind(upload, after_key, after_id)]
    page = left[: _page_size(request, "max-uploads", bucket)]
    more = len(left) > len(page)
    encoding = request.query.get("encoding-type") if bucket.options.encodes_uploads else None
    if encoding not in {None, "url"}:
        raise unknown(f"a listing encoded as {encoding}")
    written = quote if encoding else str
    next_markers = (
        tag("NextKeyMarker", written(page[-1].key)) + tag("NextUploadIdMarker", page[-1].upload_id)
        if more
        else ""
    )
    return Answer(
        body=xml(
            "ListMultipartUploadsResult",
            tag("Bucket", request.bucket),
            tag("EncodingType", encoding) if encoding else "",
            tag("Prefix", written(prefix)),
            tag("KeyMarker", written(after_key)),
            tag("UploadIdMarker", after_id),
            tag("MaxUploads", request.query.get("max-uploads", 1000)),
            tag("IsTruncated", _word(more)),
            next_markers,
            *(_upload(upload, written(upload.key)) for upload in page),
        )
    )


def list_parts(bucket: Bucket, request: Request) -> Answer:
    upload = open_upload(bucket, request)
    after = int(request.query.get("part-number-marker", 0))
    left = sorted(number for number in upload.parts if number > after)
    page = left[: _page_size(request, "max-parts", bucket)]
    more = len(left) > len(page)
    return Answer(
        body=xml(
            "ListPartsResult",
            tag("Bucket", request.bucket),
            tag("Key", request.key),
            tag("UploadId", upload.upload_id),
            tag("PartNumberMarker", after),
            tag("NextPartNumberMarker", page[-1]) if more else "",
            tag("MaxParts", request.query.get("max-parts", 1000)),
            tag("IsTruncated", _word(more)),
            *(_part(number, upload.parts[number]) for number in page),
        )
    )


def get_lifecycle(bucket: Bucket, request: Request) -> Answer:
    days = bucket.options.upload_expiry_days
    if days is None:
        raise Refusal(404, "NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist")
    action = "AbortIncompleteMultipartUpload"
    abort = f"<{action}>{tag('DaysAfterInitiation', days)}</{action}>"
    rule = f"<Rule><Filter>{tag('Prefix', '')}</Filter>{tag('Status', 'Enabled')}{abort}</Rule>"
    return Answer(body=xml("LifecycleConfiguration", rule))


def get_versioning(bucket: Bucket, request: Request) -> Answer:
    """Answer as for a bucket that never had versioning."""
    return Answer(body=xml("VersioningConfiguration", ""))


def _page_size(request: Request, parameter: str, bucket: Bucket) -> int:
    wanted = int(request.query.get(parameter, 1000))
    if wanted < 1:
        raise unknown(f"a page of {wanted}")
    return min(wanted, 1000, bucket.options.page_size)


def _is_behind(upload: Upload, after_key: str, after_id: str) -> bool:
    key, marker = upload.key.encode(), after_key.encode()
    return key > marker or (key == marker and bool(after_id) and upload.upload_id > after_id)


def _contents(key: str, found: StoredObject) -> str:
    tags = (
        tag("Key", quote(key)),
        tag("LastModified", _iso(found.modified_s)),
        tag("ETag", f'"{found.etag}"'),
        tag("Size", found.size),
        tag("StorageClass", found.attributes.storage_class),
    )
    return f"<Contents>{''.join(tags)}</Contents>"


def _upload(upload: Upload, key: str) -> str:
    tags = (
        tag("Key", key),
        tag("UploadId", upload.upload_id),
        tag("StorageClass", upload.attributes.storage_class),
        tag("Initiated", _iso(upload.begun_s)),
    )
    return f"<Upload>{''.join(tags)}</Upload>"


def _part(number: int, part: StoredPart) -> str:
    tags = (tag("PartNumber", number), tag("ETag", f'"{part.etag}"'), tag("Size", part.size))
    return f"<Part>{''.join(tags)}</Part>"


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _word(truth: bool) -> str:
    return "true" if truth else "false"


def _token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _key_in(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Refusal(400, "InvalidArgument", "The continuation token provided is incorrect") from None
