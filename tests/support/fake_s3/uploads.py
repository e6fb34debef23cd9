"""Multipart uploads: begun, filled part by part, completed or aborted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from tests.support.fake_s3.bucket import Bucket, attributes_of
from tests.support.fake_s3.checksums import check_body, composite, crc32_of
from tests.support.fake_s3.conditions import check_write
from tests.support.fake_s3.documents import parts_of
from tests.support.fake_s3.refusal import Refusal, no_such_key, no_such_upload, unknown
from tests.support.fake_s3.state import Completion, StoredObject, StoredPart, Upload
from tests.support.fake_s3.wire import Answer, Request, tag, xml

_MAX_PARTS: Final = 10_000
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")
_MAX_PART_BYTES: Final = 5 * 1024**3


def open_upload(bucket: Bucket, request: Request) -> Upload:
    """Return the upload that a request names, which must be open at its key."""
    upload = bucket.state.uploads.get(request.query["uploadId"])
    if upload is None or upload.key != request.key:
        raise no_such_upload()
    return upload


def create_multipart_upload(bucket: Bucket, request: Request) -> Answer:
    algorithm = request.headers.get("x-amz-checksum-algorithm")
    if algorithm not in {None, "CRC32"}:
        raise unknown(f"the checksum algorithm {algorithm}")
    upload = Upload(
        key=request.key,
        upload_id=bucket.new_upload_id(),
        begun_s=bucket.clock.now_s(),
        attributes=attributes_of(request),
        checksummed=algorithm is not None,
    )
    bucket.state.uploads[upload.upload_id] = upload
    body = xml(
        "InitiateMultipartUploadResult",
        tag("Bucket", request.bucket),
        tag("Key", request.key),
        tag("UploadId", upload.upload_id),
    )
    headers = {"x-amz-checksum-algorithm": algorithm} if algorithm is not None else {}
    return Answer(headers=headers, body=body)


def upload_part(bucket: Bucket, request: Request) -> Answer:
    upload = open_upload(bucket, request)
    number = int(request.query["partNumber"])
    if not 1 <= number <= _MAX_PARTS:
        raise Refusal(400, "InvalidArgument", f"Part number must be an integer between 1 and {_MAX_PARTS}")
    if len(request.body) > _MAX_PART_BYTES:
        raise Refusal(400, "EntityTooLarge", "Your proposed upload exceeds the maximum allowed size")
    crc32 = check_body(request)
    if upload.checksummed and crc32 is None:
        raise Refusal(
            400,
            "InvalidRequest",
            "Checksum Type mismatch occurred, expected crc32, actual: null",
        )
    keeps = bucket.options.keeps_parts
    part = StoredPart(
        size=len(request.body),
        etag=bucket.etag_of(request.body if keeps else (crc32 or "").encode(), upload.attributes),
        checksum=crc32,
        body=request.body if keeps else None,
    )
    bucket.state.uploads[upload.upload_id] = replace(upload, parts={**upload.parts, number: part})
    headers = {"ETag": f'"{part.etag}"'}
    if crc32 is not None:
        headers["x-amz-checksum-crc32"] = crc32
    return Answer(headers=headers)


def upload_part_copy(bucket: Bucket, request: Request) -> Answer:
    upload = open_upload(bucket, request)
    number = int(request.query["partNumber"])
    if not 1 <= number <= _MAX_PARTS:
        raise Refusal(400, "InvalidArgument", f"Part number must be an integer between 1 and {_MAX_PARTS}")
    container, _, key = unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
    source = bucket.state.objects.get(key)
    if container != request.bucket or source is None:
        raise no_such_key(key)
    wanted = _RANGE.fullmatch(request.headers.get("x-amz-copy-source-range", ""))
    if wanted is None or source.body is None:
        raise unknown("a copy without a range, or of an object whose bytes were only counted")
    first, last = int(wanted[1]), int(wanted[2])
    if last < first or last >= source.size:
        raise Refusal(400, "InvalidArgument", "Range specified is not valid for source object")
    body = source.body[first : last + 1]
    part = StoredPart(
        size=len(body),
        etag=bucket.etag_of(body, upload.attributes),
        checksum=crc32_of(body) if upload.checksummed else None,
        body=body,
    )
    bucket.state.uploads[upload.upload_id] = replace(upload, parts={**upload.parts, number: part})
    sums = [] if part.checksum is None else [tag("ChecksumCRC32", part.checksum)]
    return Answer(body=xml("CopyPartResult", tag("ETag", f'"{part.etag}"'), *sums))


def complete_multipart_upload(bucket: Bucket, request: Request) -> Answer:
    upload_id = request.query["uploadId"]
    done = bucket.state.completed.get(upload_id)
    again = done is not None and done.key == request.key
    if again and bucket.options.repeated_completion == "succeeds":
        return _completed(request, done.made)  # type: ignore[union-attr] # `again` guarantees that it is there
    upload = open_upload(bucket, request)
    named = parts_of(request)
    parts = _chosen(upload, named, bucket.options.min_part_bytes)
    size = sum(part.size for part in parts)
    _check_size(request, size)
    # A condition that does not hold leaves the upload open; only a conflict (a fault) destroys it.
    check_write(request, bucket.state.objects.get(request.key), bucket.options)
    made = StoredObject(
        size=size,
        etag=_etag_of(parts),
        modified_s=bucket.clock.now_s(),
        body=_joined(parts),
        attributes=upload.attributes,
        checksum=composite(part.checksum or "" for part in parts) if upload.checksummed else None,
    )
    del bucket.state.uploads[upload_id]
    bucket.state.completed[upload_id] = Completion(request.key, made)
    bucket.state.objects[request.key] = made
    return _completed(request, made)


def abort_multipart_upload(bucket: Bucket, request: Request) -> Answer:
    del bucket.state.uploads[open_upload(bucket, request).upload_id]
    return Answer(204)


def _chosen(upload: Upload, named: Sequence[Mapping[str, str]], min_bytes: int) -> list[StoredPart]:
    numbers = [int(part["PartNumber"]) for part in named]
    if numbers != sorted(set(numbers)):
        raise Refusal(400, "InvalidPartOrder", "The list of parts was not in ascending order")
    chosen = [_part(upload, number, part) for number, part in zip(numbers, named, strict=True)]
    if any(part.size < min_bytes for part in chosen[:-1]):
        raise Refusal(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
    return chosen


def _part(upload: Upload, number: int, named: Mapping[str, str]) -> StoredPart:
    part = upload.parts.get(number)
    checksum = named.get("ChecksumCRC32")
    if upload.checksummed and checksum is None:
        raise Refusal(
            400,
            "InvalidRequest",
            "The upload was created using a crc32 checksum. The complete request must include the checksum "
            f"for each part. It was missing for part {number} in the request.",
        )
    if part is None or named["ETag"].strip('"') != part.etag or checksum not in {None, part.checksum}:
        raise Refusal(400, "InvalidPart", f"Part {number} could not be found, or its ETag does not match")
    return part


def _check_size(request: Request, size: int) -> None:
    promised = request.headers.get("x-amz-mp-object-size")
    if promised is not None and int(promised) != size:
        raise Refusal(
            400, "InvalidRequest", f"The provided 'x-amz-mp-object-size' header does not match {size}"
        )


def _etag_of(parts: Sequence[StoredPart]) -> str:
    digests = b"".join(bytes.fromhex(part.etag) for part in parts)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def _joined(parts: Sequence[StoredPart]) -> bytes | None:
    bodies = [part.body for part in parts if part.body is not None]
    return b"".join(bodies) if len(bodies) == len(parts) else None


def _completed(request: Request, made: StoredObject) -> Answer:
    checksum_tags = []
    if made.checksum is not None:
        checksum_tags = [tag("ChecksumCRC32", made.checksum.value), tag("ChecksumType", made.checksum.kind)]
    body = xml(
        "CompleteMultipartUploadResult",
        tag("Bucket", request.bucket),
        tag("Key", request.key),
        tag("ETag", f'"{made.etag}"'),
        *checksum_tags,
    )
    return Answer(headers={"Content-Type": "application/xml"}, body=body)
