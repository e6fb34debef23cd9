"""Calls are made from templates where possible and left to boto3 otherwise."""

from __future__ import annotations

import io
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, ParamValidationError

from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.s3.clients import clients_for
from lockgate.storage_core.stores.s3.fast_path.endpoint import make_lean
from lockgate.storage_core.stores.s3.fast_path.request_template import LeanRequest
from lockgate.storage_core.stores.s3.store import S3Store
from tests.support.blobs.certificates import certify
from tests.support.s3.misbehaving_server import Manner, RudeServer, answer, hangs_up, rude_server
from tests.support.s3.moto_server import mocked_aws

MIB = 2**20


@pytest.fixture
def server() -> Iterator[RudeServer]:
    with rude_server() as server:
        yield server


@pytest.fixture
def new_client(server: RudeServer) -> Callable[..., Any]:
    """Return a function that makes lean clients; their `made` lists the requests made from templates."""

    def client(**config: Any) -> Any:
        session = boto3.Session("AKIDEXAMPLE", "secret", region_name="us-east-1")
        make_lean(session)
        plain = Config(retries={"mode": "standard", "total_max_attempts": 1}, s3={"addressing_style": "path"})
        client = session.client("s3", endpoint_url=server.endpoint, config=plain.merge(Config(**config)))
        client.made = []
        client.meta.events.register(
            "before-send.s3",
            lambda request, **_: client.made.append(request) if isinstance(request, LeanRequest) else None,
        )
        return client

    return client


def put(client: Any, body: Any = b"x", **parameters: Any) -> Any:
    return client.put_object(
        **{"Bucket": "lake", "Key": "k", "Body": body, "ChecksumCRC32": "AAAAAA==", **parameters}
    )


def test_the_first_call_of_a_kind_is_made_by_boto3_and_is_the_template_of_the_next_ones(
    new_client: Callable[..., Any], server: RudeServer
) -> None:
    client = new_client()
    for number in range(3):
        put(client, b"%d" % number, Key=f"k{number}")
    assert [request.url.rpartition("/")[2] for request in client.made] == ["k1", "k2"]
    assert [body for _, _, body in server.seen] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("parameters", [{"Bucket": "other"}, {"IfNoneMatch": "*"}])
def test_another_bucket_or_parameter_needs_another_template(
    new_client: Callable[..., Any], parameters: dict[str, Any]
) -> None:
    client = new_client()
    put(client)
    put(client, **parameters)
    assert not client.made
    put(client, **parameters)
    assert len(client.made) == 1


@pytest.mark.parametrize("parameters", [{"Body": io.BytesIO(b"file")}, {"Metadata": {"name": "two  spaces"}}])
def test_calls_that_are_not_plain_are_left_to_boto3_and_do_not_affect_templates(
    new_client: Callable[..., Any], server: RudeServer, parameters: dict[str, Any]
) -> None:
    client = new_client()
    usual = {"Metadata": {"name": "plain"}, **{name: b"x" for name in parameters if name == "Body"}}
    for _ in range(4):
        put(client, **{**usual, **parameters})
    assert not client.made
    put(client, **usual)
    put(client, **usual)
    assert len(client.made) == 1
    assert len(server.seen) == 6


@pytest.mark.parametrize(
    "config",
    [{"signature_version": "s3"}, {"signature_version": botocore.UNSIGNED}],
)
def test_another_signature_version_is_left_to_boto3(
    new_client: Callable[..., Any], config: dict[str, Any]
) -> None:
    client = new_client(**config)
    for _ in range(4):
        client.get_object(Bucket="lake", Key="k")["Body"].read()
    assert not client.made


def test_a_header_that_someone_else_adds_is_left_to_boto3(
    new_client: Callable[..., Any], server: RudeServer
) -> None:
    client = new_client()
    client.meta.events.register(
        "before-sign.s3", lambda request, **_: request.headers.add_header("X-Team", "blue")
    )
    for _ in range(5):
        put(client)
    assert not client.made
    assert all(b"X-Team: blue" in head for _, head, _ in server.seen)


def test_a_template_keeps_no_values_of_the_call_it_was_made_from(
    new_client: Callable[..., Any], server: RudeServer
) -> None:
    client = new_client(retries={"mode": "standard", "total_max_attempts": 2})
    server.manners = [hangs_up]
    put(client, b"body")
    (template,) = client._templates.values()
    assert set(template.context) <= {
        "auth_options",
        "auth_type",
        "checksum",
        "client_config",
        "client_region",
        "endpoint_properties",
        "has_streaming_input",
        "signing",
        "unsigned_payload",
    }


def test_parameters_are_validated_as_by_boto3(new_client: Callable[..., Any], server: RudeServer) -> None:
    client = new_client()
    put(client)
    for wrong in ({"Key": ""}, {"Key": 7}, {"Bodi": b""}):
        with pytest.raises(ParamValidationError):
            put(client, **wrong)
    assert len(server.seen) == 1


@pytest.mark.parametrize(("size", "waits"), [(MIB - 1, False), (MIB, True)])
def test_a_large_body_waits_for_100_continue(
    new_client: Callable[..., Any], server: RudeServer, size: int, waits: bool
) -> None:
    client = new_client()
    put(client)
    put(client, b"x" * size)
    assert len(client.made) == 1
    assert (b"Expect: 100-continue" in server.seen[1][1]) is waits
    assert server.seen[1][2] == b"x" * size


def test_new_credentials_sign_the_next_call(new_client: Callable[..., Any], server: RudeServer) -> None:
    client = new_client()
    put(client)
    credentials = client.credentials()
    credentials.access_key, credentials.token = "AKIDNEW", "token"
    put(client)
    head = server.seen[1][1]
    assert len(client.made) == 1
    assert b"Credential=AKIDNEW/" in head
    assert b"X-Amz-Security-Token: token" in head
    assert b"x-amz-security-token" in head.partition(b"SignedHeaders=")[2]


def test_a_hook_may_return_a_response_and_headers_it_adds_are_sent(
    new_client: Callable[..., Any], server: RudeServer
) -> None:
    client = new_client()
    put(client)
    client.meta.events.register(
        "before-send.s3", lambda request, **_: request.headers.__setitem__("X-Trace", b"7"), unique_id="trace"
    )
    put(client)
    assert b"X-Trace: 7" in server.seen[1][1]

    response = AWSResponse("", 200, {"ETag": '"hooked"'}, None)
    response._content = b""
    client.meta.events.register("before-send.s3", lambda request, **_: response)
    assert put(client)["ETag"] == '"hooked"'
    assert len(server.seen) == 2


def test_a_body_with_another_checksum_is_refused(new_client: Callable[..., Any], server: RudeServer) -> None:
    client = new_client()
    client.get_object(Bucket="lake", Key="k")["Body"].read()
    server.manners = [answer(body=b"body", headers=b"x-amz-checksum-crc32: AAAAAA==\r\n")]
    with pytest.raises(botocore.exceptions.FlexibleChecksumError):
        client.get_object(Bucket="lake", Key="k")["Body"].read()
    assert len(client.made) == 1


@pytest.mark.parametrize("manner", [answer(), hangs_up, answer(keeps=False)])
def test_a_call_over_tls_has_the_same_outcome_as_with_boto3(tmp_path: Path, manner: Manner) -> None:
    certificate, key = certify(tmp_path, "store")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    outcomes = []
    with rude_server(tls) as server:
        for lean in (True, False):
            session = boto3.Session("AKIDEXAMPLE", "secret", region_name="us-east-1")
            if lean:
                make_lean(session)
            config = Config(
                retries={"mode": "standard", "total_max_attempts": 1}, s3={"addressing_style": "path"}
            )
            client = session.client(
                "s3", endpoint_url=server.endpoint, verify=str(certificate), config=config
            )
            put(client)
            put(client)
            server.manners = [manner]
            try:
                outcomes.append(put(client)["ETag"])
            except ConnectionClosedError as fault:
                outcomes.append(type(fault))
            server.wait()
            put(client)
            client.close()
    assert outcomes[0] == outcomes[1]
    # Only requests made from a template skip the wait for 100 Continue.
    assert [b"Expect" in head for _, head, _ in server.seen].count(False) == 3


def test_moto_answers_lean_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with mocked_aws():
        clients = clients_for(Settings(s3_region="us-east-1", s3_lean=True))
        clients.repeating.create_bucket(Bucket="lean")
        store = S3Store("lean", "sales", Settings(s3_region="us-east-1", s3_lean=True))
        for number in range(3):
            store.put(f"a {number}", b"%d" % number)
        assert [store.get(f"a {number}") for number in range(3)] == [b"0", b"1", b"2"]


class TestOutcomes:
    @pytest.fixture
    def store(self, server: RudeServer, monkeypatch: pytest.MonkeyPatch) -> S3Store:
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        store = S3Store(
            "lake", "", Settings(s3_endpoint_url=server.endpoint, s3_max_attempts=2, s3_lean=True)
        )
        store.create("first", b"")
        store.put("first", b"")
        server.seen.clear()
        return store

    def test_a_create_without_a_response_has_an_unknown_outcome_and_is_not_sent_again(
        self, store: S3Store, server: RudeServer
    ) -> None:
        server.manners = [hangs_up]
        with pytest.raises(OutcomeUnknownError):
            store.create("a", b"x")
        assert len(server.seen) == 1

    def test_a_refusal_after_a_try_without_a_response_has_an_unknown_outcome(
        self, store: S3Store, server: RudeServer
    ) -> None:
        busy = answer("503 Slow Down", b"<Error><Code>SlowDown</Code></Error>")
        server.manners = [hangs_up, busy]
        with pytest.raises(OutcomeUnknownError):
            store.put("a", b"x")
        server.manners = [busy, busy]
        with pytest.raises(StoreUnavailableError):
            store.put("a", b"x")
