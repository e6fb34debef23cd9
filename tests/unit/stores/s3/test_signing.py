"""Lean calls send the same requests as boto3 for names that are hard to encode in a URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.storage_core.stores.s3.fast_path.request_template import Template, fits
from lockgate.storage_core.stores.s3.fast_path.signer import Signable, Signer
from tests.support.soak import rounds

pytestmark = pytest.mark.slow

HARD = st.sampled_from(
    [" ", "+", "%", "%2F", "/", "//", ".", "..", "~", "é", "日", "🙂", "?", "#", "&", "=", "'"]
)
KEYS = st.lists(HARD | st.text(min_size=1, max_size=4), min_size=1, max_size=8).map("".join)
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
TOKENS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)
QUOTED = st.text("abzAZ09-._~%", max_size=6)
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "path style": {"endpoint_url": "http://127.0.0.1:9000"},
    "default port": {"endpoint_url": "http://store:80"},
    "endpoint below a path": {"endpoint_url": "https://gate.example:8443/s3"},
    "IPv6": {"endpoint_url": "http://[::1]:9000"},
    "AWS": {"region_name": "eu-west-3"},
    "dual stack": {"region_name": "eu-west-3", "config": Config(s3={"use_dualstack_endpoint": True})},
    "signed payloads": {"config": Config(s3={"payload_signing_enabled": True})},
    "unsigned payloads": {"config": Config(s3={"payload_signing_enabled": False})},
    "checksums only where required": {
        "config": Config(
            request_checksum_calculation="when_required", response_checksum_validation="when_required"
        )
    },
    "session token": {"aws_session_token": "token"},
}


@pytest.fixture(scope="module")
def session() -> boto3.Session:
    return boto3.Session("AKIDEXAMPLE", "secret", region_name="us-east-1")


def request_of(client: Any, operation: str, parameters: Mapping[str, Any]) -> AWSPreparedRequest:
    """Return the request that boto3 would send."""
    seen: list[AWSPreparedRequest] = []

    def answer(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        seen.append(request)
        response = AWSResponse(request.url, 412, {}, None)
        response._content = b""
        return response

    client.meta.events.register("before-send.s3", answer, unique_id="answer")
    try:
        with pytest.raises(client.exceptions.ClientError):
            getattr(client, operation)(**parameters)
    finally:
        client.meta.events.unregister("before-send.s3", unique_id="answer")
    return seen[0]


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def client(request: pytest.FixtureRequest, session: boto3.Session) -> Iterator[Any]:
    client = session.client(
        "s3",
        **{
            "aws_access_key_id": "AKIDEXAMPLE",
            "aws_secret_access_key": "secret",
            **CONFIGURATIONS[request.param],
        },
    )
    yield client
    client.close()


@settings(max_examples=rounds(15, 100))
@given(key=KEYS, metadata=st.dictionaries(TOKENS, PRINTABLE, max_size=3), body=st.binary(max_size=40))
def test_a_request_is_identical_to_that_of_boto3(
    client: Any, key: str, metadata: dict[str, str], body: bytes
) -> None:
    put = {"Bucket": "lake", "Key": key, "Body": body, "ChecksumCRC32": "AAAAAA==", "Metadata": metadata}
    part = {"PartNumber": 7, "ETag": '"<e&>"', "ChecksumCRC32": "AAAAAA=="}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("put_object", "PutObject", put),
        ("get_object", "GetObject", {"Bucket": "lake", "Key": key, "Range": "bytes=0-8"}),
        ("delete_object", "DeleteObject", {"Bucket": "lake", "Key": key, "IfMatch": '"v"'}),
        (
            "complete_multipart_upload",
            "CompleteMultipartUpload",
            {"Bucket": "lake", "Key": key, "UploadId": key, "MultipartUpload": {"Parts": [part]}},
        ),
        (
            "upload_part",
            "UploadPart",
            {
                "Bucket": "lake",
                "Key": key,
                "UploadId": "u +/=",
                "PartNumber": 3,
                "Body": body,
                "ChecksumCRC32": "AAAAAA==",
            },
        ),
        (
            "create_multipart_upload",
            "CreateMultipartUpload",
            {"Bucket": "lake", "Key": key, "Metadata": metadata, "ChecksumAlgorithm": "CRC32"},
        ),
    ]
    credentials = client._request_signer._credentials
    for method, operation, parameters in calls:
        seen = request_of(client, method, parameters)
        model = client.meta.service_model.operation_model(operation)
        serialized = client._serializer.serialize_to_request(parameters, model)
        assert fits(serialized)
        # A template is kept only if the request made from it is identical, including the signature.
        assert Template.learned(seen, serialized, credentials) is not None, operation


@given(
    method=st.sampled_from(["GET", "PUT"]),
    path=QUOTED.map("/".__add__),
    query=st.dictionaries(QUOTED.filter(bool), QUOTED, max_size=4),
    headers=st.dictionaries(TOKENS.map("x-amz-meta-".__add__), PRINTABLE, max_size=4),
    token=st.none() | PRINTABLE,
)
def test_signatures_equal_those_of_botocore(
    method: str, path: str, query: dict[str, str], headers: dict[str, str], token: str | None
) -> None:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    theirs = AWSRequest(method, f"https://lake.example:8443{path}?{text}", headers=headers, data=b"body")
    theirs.context["client_config"] = Config(s3={"payload_signing_enabled": True})
    S3SigV4Auth(Credentials("AKID", "secret", token), "s3", "eu-west-3").add_auth(theirs)
    signed = {name.lower(): str(value) for name, value in theirs.headers.items() if name != "Authorization"}
    signed["host"] = "lake.example:8443"
    ours = Signable(method, path, text, signed, theirs.headers["X-Amz-Content-SHA256"])
    assert Signer("eu-west-3").authorization(ours, "AKID", "secret") == theirs.headers["Authorization"]
