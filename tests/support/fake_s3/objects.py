"""Objects: put, read, deleted, one or many at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.support.fake_s3.bucket import Bucket, attributes_of, headers_of
from tests.support.fake_s3.checksums import check_body
from tests.support.fake_s3.conditions import check_delete, check_write
from tests.support.fake_s3.documents import deletions_of
from tests.support.fake_s3.refusal import Refusal, no_such_key, unknown
from tests.support.fake_s3.state import Checksum, StoredObject
from tests.support.fake_s3.wire import Answer, Request, tag, xml

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def put_object(bucket: Bucket, request: Request) -> Answer:
    crc32 = check_body(request)
    check_write(request, bucket.state.objects.get(request.key), bucket.options)
    attributes = attributes_of(request)
    made = StoredObject(
        size=len(request.body),
        etag=bucket.etag_of(request.body, attributes),
        modified_s=bucket.clock.now_s(),
        body=request.body,
        attributes=attributes,
        checksum=None if crc32 is None else Checksum(crc32, "FULL_OBJECT"),
    )
    bucket.state.objects[request.key] = made
    return Answer(headers={"ETag": f'"{made.etag}"', **_checksum_headers(made)})


def head_object(bucket: Bucket, request: Request) -> Answer:
    found = _found(bucket, request)
    headers = {
        **headers_of(found.attributes, found.etag, found.modified_s),
        "Content-Length": str(found.size),
    }
    if request.headers.get("x-amz-checksum-mode") == "ENABLED":
        headers.update(_checksum_headers(found))
    return Answer(headers=headers)


def get_object(bucket: Bucket, request: Request) -> Answer:
    found = _found(bucket, request)
    if found.body is None:
        raise unknown(f"the bytes of {request.key}: they were only counted")
    headers = dict(headers_of(found.attributes, found.etag, found.modified_s))
    wanted = request.headers.get("range")
    if wanted is None:
        if request.headers.get("x-amz-checksum-mode") == "ENABLED":
            headers.update(_checksum_headers(found))
        return Answer(headers=headers, body=found.body)
    match = _RANGE.fullmatch(wanted)
    if match is None:
        raise unknown(f"the range {wanted}")
    first = int(match[1])
    last = min(int(match[2] or found.size), found.size - 1)
    if first >= found.size or last < first:
        raise Refusal(416, "InvalidRange", "The requested range is not satisfiable")
    headers["Content-Range"] = f"bytes {first}-{last}/{found.size}"
    return Answer(206, headers, found.body[first : last + 1])


def delete_object(bucket: Bucket, request: Request) -> Answer:
    standing = bucket.state.objects.get(request.key)
    check_delete(request.headers.get("if-match"), standing, request.key, bucket.options)
    bucket.state.objects.pop(request.key, None)
    return Answer(204)


def delete_objects(bucket: Bucket, request: Request) -> Answer:
    if check_body(request) is None and "content-md5" not in request.headers:
        raise Refusal(400, "InvalidRequest", "Missing required header for this request: Content-MD5")
    objects, quiet = deletions_of(request)
    results = []
    for one in objects:
        key = one["Key"]
        try:
            check_delete(one.get("ETag"), bucket.state.objects.get(key), key, bucket.options)
        except Refusal as refusal:
            results.append(failed_deletion(key, refusal.code, refusal.message))
            continue
        bucket.state.objects.pop(key, None)
        if not quiet:
            results.append(f"<Deleted>{tag('Key', key)}</Deleted>")
    return Answer(body=xml("DeleteResult", *results))


def failed_deletion(key: str, code: str, message: str) -> str:
    return f"<Error>{tag('Key', key)}{tag('Code', code)}{tag('Message', message)}</Error>"


def _found(bucket: Bucket, request: Request) -> StoredObject:
    found = bucket.state.objects.get(request.key)
    if found is None:
        raise no_such_key(request.key)
    return found


def _checksum_headers(found: StoredObject) -> Mapping[str, str]:
    if found.checksum is None:
        return {}
    return {"x-amz-checksum-crc32": found.checksum.value, "x-amz-checksum-type": found.checksum.kind}
