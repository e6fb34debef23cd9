"""If private names that lean calls rely on are missing, boto3 makes the calls; responses never mix."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import urllib3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.client import BaseClient
from botocore.config import Config
from botocore.endpoint import Endpoint
from botocore.exceptions import CredentialRetrievalError
from botocore.httpsession import ProxyConfiguration, URLLib3Session
from botocore.parsers import RestXMLParser
from botocore.retries.standard import ExponentialBackoff
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ClosedPoolError

from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.s3.fast_path import endpoint as s3_bulk
from lockgate.storage_core.stores.s3.fast_path.compatibility import warn
from lockgate.storage_core.stores.s3.fast_path.connection import ReadAnswer
from lockgate.storage_core.stores.s3.fast_path.endpoint import make_lean
from lockgate.storage_core.stores.s3.store import S3Store
from tests.support.s3.misbehaving_server import RudeServer, answer, refusal, rude_server, sends

OK = b'HTTP/1.1 200 OK\r\nETag: "e"\r\n'
LATE = OK.replace(b'"e"', b'"late"') + b"Content-Length: 0\r\n\r\n"


@pytest.fixture
def server() -> Iterator[RudeServer]:
    with rude_server() as server:
        yield server


@pytest.fixture
def new_client(server: RudeServer) -> Callable[[], Any]:
    def client() -> Any:
        session = boto3.Session("AKIDEXAMPLE", "secret", region_name="us-east-1")
        make_lean(session)
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1}, s3={"addressing_style": "path"}
        )
        return session.client("s3", endpoint_url=server.endpoint, config=config)

    return client


def put(client: Any, key: str = "k") -> str:
    etag: str = client.put_object(Bucket="lake", Key=key, Body=b"x", ChecksumCRC32="AAAAAA==")["ETag"]
    return etag


def pool_of(client: Any) -> Any:
    return next(iter(client._lean_endpoint._wire._pools.values()))


def standing(client: Any) -> list[Any]:
    return [connection for connection in pool_of(client).pool.queue if connection and connection.sock]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    warn.cache_clear()
    caplog.set_level(logging.WARNING, "lockgate.storage_core.stores")
    return lambda: [record.getMessage() for record in caplog.records if "LEAN" in record.getMessage()]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Endpoint, "_send"),
        (Endpoint, "_needs_retry"),
        (RestXMLParser, "_parse_non_payload_attrs"),
        (RestXMLParser, "_parse_shape"),
        (RestXMLParser, "_parse_header_map"),
        (urllib3.HTTPConnectionPool, "_get_conn"),
        (urllib3.HTTPConnectionPool, "_put_conn"),
        (HTTPConnection, "is_closed"),
        (ProxyConfiguration, "proxy_url_for"),
        (BaseClient, "_make_api_call"),
    ],
)
def test_a_missing_private_name_leaves_calls_to_boto3_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]], owner: type, name: str
) -> None:
    home = next(base for base in owner.__mro__ if name in vars(base))
    monkeypatch.delattr(home, name)
    for _ in range(2):
        session = boto3.Session("AKIDEXAMPLE", "secret", region_name="us-east-1")
        make_lean(session)
        client = session.client("s3")
        assert not isinstance(client, s3_bulk.LeanClient)
    assert len(warnings()) == 1
    assert name in warnings()[0]
    assert "LOCKGATE_S3_LEAN=false" in warnings()[0]


@pytest.mark.parametrize("name", ["_manager", "_proxy_config"])
def test_a_session_of_another_shape_leaves_calls_to_boto3_and_warns_once(
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
    new_client: Callable[[], Any],
    name: str,
) -> None:
    known = {"_manager": None, "_proxy_config": None}
    del known[name]
    wire = partial(s3_bulk.Wire, SimpleNamespace(**known))
    monkeypatch.setattr(s3_bulk, "Wire", lambda session, timeout_s: wire(timeout_s))
    clients = [new_client() for _ in range(2)]
    for client in clients:
        assert [put(client) for _ in range(3)] == ['"e"'] * 3
    assert len(warnings()) == 1


def test_a_pool_of_another_shape_leaves_sending_to_boto3(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]], new_client: Callable[[], Any]
) -> None:
    client = new_client()
    monkeypatch.setattr(
        "lockgate.storage_core.stores.s3.fast_path.connection.Wire._taken",
        lambda self, request: request.no_such_name,
    )
    assert [put(client) for _ in range(3)] == ['"e"'] * 3
    assert len(warnings()) == 1


def test_a_successful_call_does_not_fail_because_no_template_can_be_made_of_it(
    monkeypatch: pytest.MonkeyPatch, new_client: Callable[[], Any]
) -> None:
    client = new_client()

    def gone() -> Any:
        raise CredentialRetrievalError(provider="role", error_msg="expired during the call")

    client.credentials = gone
    assert [put(client) for _ in range(5)] == ['"e"'] * 5


def test_a_header_added_by_a_hook_may_be_text(new_client: Callable[[], Any], server: RudeServer) -> None:
    client = new_client()
    put(client)
    client.meta.events.register(
        "before-send.s3", lambda request, **_: request.headers.__setitem__("X-Trace", "7"), unique_id="trace"
    )
    put(client)
    assert b"X-Trace: 7" in server.seen[1][1]


@pytest.mark.parametrize("status", [b"102 Processing", b"103 Early Hints"])
def test_an_interim_response_is_skipped(
    new_client: Callable[[], Any], server: RudeServer, status: bytes
) -> None:
    client = new_client()
    first = b"HTTP/1.1 " + status + b"\r\nLink: <x>\r\n\r\n"
    for _ in range(2):  # boto3's call, then one made from its template
        server.manners = [sends(first + OK + b"Content-Length: 0\r\n\r\n", keeps=True)]
        assert put(client) == '"e"'
    server.manners = [sends(first + first + b"HTTP/1.1 412 No\r\nContent-Length: 0\r\n\r\n", keeps=True)]
    with pytest.raises(client.exceptions.ClientError, match="412"):
        put(client)


@pytest.mark.parametrize(
    "text",
    [
        OK + b"Content-Length: 0\r\n\r\n" + LATE,
        b'HTTP/1.1 204 No\r\nETag: "e"\r\nContent-Length: 4\r\n\r\nbody',
        OK + b"Content-Length: 0\r\n\r\ngarbage",
    ],
)
def test_a_connection_with_bytes_after_the_response_is_not_reused(
    new_client: Callable[[], Any], server: RudeServer, text: bytes
) -> None:
    client = new_client()
    put(client)
    server.manners = [sends(text, keeps=True)]
    before = server.connections
    assert put(client) == '"e"'
    assert not standing(client)
    assert put(client) == '"e"'
    assert server.connections == before + 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_call_leaves_no_duplicate_or_open_connection_in_the_pool(
    monkeypatch: pytest.MonkeyPatch, new_client: Callable[[], Any], stop: type[BaseException]
) -> None:
    client = new_client()
    put(client)
    put(client)
    pool = pool_of(client)
    give_back = pool._put_conn

    def interrupted(connection: Any) -> None:
        give_back(connection)
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(pool, "_put_conn", interrupted)
        with pytest.raises(stop):
            put(client)
    assert len(standing(client)) == 1
    assert len([connection for connection in pool.pool.queue if connection]) == 1

    def cut(*_: Any) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(ReadAnswer, "__init__", cut)
        with pytest.raises(stop):
            put(client)
    assert not standing(client)
    assert put(client) == '"e"'


def test_a_pool_that_two_threads_find_closed_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, new_client: Callable[[], Any]
) -> None:
    client = new_client()
    put(client)
    put(client)
    pools = client._lean_endpoint._wire._pools
    pool = pool_of(client)

    def closed_for_both() -> Any:
        pools.clear()
        raise ClosedPoolError(pool, "closed")

    monkeypatch.setattr(pool, "_get_conn", closed_for_both)
    monkeypatch.setattr(URLLib3Session, "send", lambda self, request: _sent(request))
    assert put(client) == '"sent"'


def _sent(request: AWSPreparedRequest) -> AWSResponse:
    response = AWSResponse(request.url, 200, {"ETag": '"sent"'}, None)
    response._content = b""
    return response


@pytest.mark.parametrize("lean", [True, False])
def test_a_refusal_after_a_try_with_an_internal_error_has_an_unknown_outcome(
    server: RudeServer, monkeypatch: pytest.MonkeyPatch, lean: bool
) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
    store = S3Store("lake", "", Settings(s3_endpoint_url=server.endpoint, s3_max_attempts=2, s3_lean=lean))
    for last in (refusal("503 Slow Down", "SlowDown"), refusal("403 Forbidden", "ExpiredToken")):
        store.put("a", b"x")
        server.manners = [answer("500 Oh", b""), last]
        with pytest.raises(OutcomeUnknownError):
            store.put("a", b"x")
