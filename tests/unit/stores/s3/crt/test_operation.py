"""Messages of frequent operations are those that boto3 sends, for names that are hard to encode in a URL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.storage_core.stores.s3.crt.operation import NAMES, Operation
from tests.support.soak import rounds

HARD = st.sampled_from(
    [" ", "+", "%", "%2F", "/", "//", ".", "..", "~", "é", "日", "🙂", "?", "#", "&", "=", "'", "*", "(", "!"]
)
KEYS = st.lists(HARD | st.text(min_size=1, max_size=4), min_size=1, max_size=8).map("".join)
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
TOKENS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)

BY_BOTO3_ALONE = {
    "accept-encoding",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "authorization",
    "content-length",
    "expect",
    "host",
    "user-agent",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-sdk-checksum-algorithm",
}
"""Headers of the transport and the signature."""


class _NotSentError(Exception):
    pass


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    session = boto3.Session("AKIDEXAMPLE", "secret", region_name="us-east-1")
    client = session.client("s3", endpoint_url="http://127.0.0.1:9000")
    yield client
    client.close()


def sent(client: Any, method: str, parameters: dict[str, Any]) -> AWSPreparedRequest:
    seen: list[AWSPreparedRequest] = []

    def keep(request: AWSPreparedRequest, **_: Any) -> None:
        seen.append(request)
        raise _NotSentError

    client.meta.events.register("before-send.s3", keep, unique_id="keep")
    try:
        with pytest.raises(_NotSentError):
            getattr(client, method)(**parameters)
    finally:
        client.meta.events.unregister("before-send.s3", unique_id="keep")
    return seen[0]


@settings(max_examples=rounds(30, 300), deadline=None)
@given(key=KEYS, metadata=st.dictionaries(TOKENS, PRINTABLE, max_size=3), body=st.binary(max_size=40))
def test_a_message_is_what_boto3_sends(client: Any, key: str, metadata: dict[str, str], body: bytes) -> None:
    it = {"Bucket": "lake", "Key": key}
    part = {"PartNumber": 7, "ETag": '"<e&>"', "ChecksumCRC32": "AAAAAA=="}
    calls: dict[str, dict[str, Any]] = {
        "put_object": {
            **it,
            "Body": body,
            "ChecksumCRC32": "AAAAAA==",
            "Metadata": metadata,
            "IfNoneMatch": "*",
        },
        "get_object": {**it, "Range": "bytes=0-8"},
        "head_object": it,
        "delete_object": {**it, "IfMatch": '"v"'},
        "create_multipart_upload": {
            **it,
            "Metadata": metadata,
            "ChecksumAlgorithm": "CRC32",
            "ContentType": "text/csv",
            "StorageClass": "STANDARD_IA",
            "ServerSideEncryption": "aws:kms",
            "SSEKMSKeyId": "key",
        },
        "upload_part": {
            **it,
            "UploadId": "u +/=",
            "PartNumber": 3,
            "Body": body,
            "ChecksumCRC32": "AAAAAA==",
        },
        "complete_multipart_upload": {**it, "UploadId": key, "MultipartUpload": {"Parts": [part]}},
        "abort_multipart_upload": {**it, "UploadId": key},
        "list_multipart_uploads": {
            "Bucket": "lake",
            "KeyMarker": key,
            "Prefix": key,
            "UploadIdMarker": "u +/=",
        },
    }
    assert set(calls) == set(NAMES)
    for method, parameters in calls.items():
        ours = Operation.of(client.meta.service_model, NAMES[method]).message(parameters)
        theirs = sent(client, method, dict(parameters))
        assert (ours.method, f"http://127.0.0.1:9000/lake{ours.path}") == (theirs.method, theirs.url)
        headers = {name.lower(): value for name, value in theirs.headers.items()}
        text = {name: value if isinstance(value, str) else value.decode() for name, value in headers.items()}
        expected = {name: value for name, value in text.items() if name not in BY_BOTO3_ALONE}
        expected.pop("x-amz-checksum-mode", None)
        expected.pop("content-type", None) if method != "create_multipart_upload" else None
        assert {name.lower(): value for name, value in ours.headers} == expected
        theirs_body = theirs.body.read() if hasattr(theirs.body, "read") else theirs.body
        assert ours.body == (theirs_body or b"")


def test_an_unknown_parameter_is_refused(client: Any) -> None:
    operation = Operation.of(client.meta.service_model, "GetObject")
    with pytest.raises(TypeError, match="GetObject has no parameter Colour"):
        operation.message({"Bucket": "lake", "Key": "k", "Colour": "red"})
