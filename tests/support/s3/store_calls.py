"""The calls of a store on S3, and the answers of a correct server to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from lockgate.storage_core.ids import Token
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.protocol import Part, PendingUpload

TOKEN: Final = Token("t" * 32)

PARTS: Final = (Part(number=1, size=4, etag='"e"', checksum="AAAAAA=="),)

PENDING: Final = PendingUpload(key="k", upload_id="u", token=TOKEN, size=4, parts=PARTS)

DATE: Final = b"Date: Sun, 22 Nov 2026 10:00:00 GMT\r\n"

OBJECT: Final = b'%bETag: "0123456789abcdef"\r\nLast-Modified: Sun, 22 Nov 2026 10:00:00 GMT\r\n' % DATE


class Call(NamedTuple):
    """A call of a store, and the answer of a correct server.

    Attributes:
        changes: Whether it changes anything; a call that does not is repeated.
        boto3: Whether boto3 sends it also where CRT is installed.
    """

    make: Callable[[Store], object]
    answer: bytes
    changes: bool = True
    boto3: bool = False


def success(headers: bytes, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body)


def document(root: bytes, inner: bytes) -> bytes:
    return success(DATE, b'<?xml version="1.0"?><%b>%b</%b>' % (root, inner, root))


def _complete_ahead(store: Store) -> object:
    sender, arrived = store.completion_sender(), threading.Event()
    if sender is None:  # boto3 waits for each answer
        return store.complete_upload(PENDING)
    wait = sender.send(PENDING, if_absent=False, arrived=arrived.set)
    try:
        return wait()
    finally:
        assert arrived.wait(10)


GONE: Final = b"HTTP/1.1 204 No Content\r\n%b\r\n" % DATE

UPLOAD: Final = (
    b"<Upload><Key>k</Key><UploadId>u</UploadId><Initiated>2026-11-22T10:00:00.000Z</Initiated></Upload>"
)

CALLS: Final = {
    "put": Call(lambda store: store.put("k", b"data"), success(OBJECT)),
    "create": Call(lambda store: store.create("k", b"data"), success(OBJECT)),
    "get": Call(lambda store: store.get("k"), success(OBJECT, b"data"), changes=False),
    "head": Call(lambda store: store.head("k"), success(OBJECT), changes=False),
    "delete": Call(lambda store: store.delete("k"), GONE),
    "begin": Call(
        lambda store: store.begin_upload("k", TOKEN),
        document(b"InitiateMultipartUploadResult", b"<UploadId>upload</UploadId>"),
    ),
    "part": Call(lambda store: store.put_part("k", "u", 1, 0, b"data"), success(OBJECT)),
    "complete": Call(
        lambda store: store.complete_upload(PENDING),
        document(b"CompleteMultipartUploadResult", b"<ETag>&quot;0123&quot;</ETag>"),
    ),
    "complete ahead": Call(
        _complete_ahead,
        document(b"CompleteMultipartUploadResult", b"<ETag>&quot;0123&quot;</ETag>"),
    ),
    "abort": Call(lambda store: store.abort_upload("k", "u"), GONE),
    "list": Call(
        lambda store: list(store.pages()),
        document(b"ListBucketResult", b"<IsTruncated>false</IsTruncated>"),
        changes=False,
        boto3=True,
    ),
    "list uploads": Call(
        lambda store: list(store.upload_pages()),
        document(b"ListMultipartUploadsResult", b"<IsTruncated>false</IsTruncated>" + UPLOAD),
        changes=False,
    ),
    "delete many": Call(
        lambda store: store.delete_many(["k"]),
        document(b"DeleteResult", b"<Error><Key>k</Key><Code>AccessDenied</Code></Error>"),
        boto3=True,
    ),
}
