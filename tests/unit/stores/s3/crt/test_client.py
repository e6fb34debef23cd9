"""The client that sends by AWS CRT: credentials, redirects, proxies, forks, and its absence."""

from __future__ import annotations

import base64
import gc
import multiprocessing
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from pathlib import Path
from unittest.mock import Mock, create_autospec

import pytest
from awscrt.exceptions import AwsCrtError
from awscrt.s3 import S3Client
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from lockgate.storage_core.errors import (
    AccessDeniedError,
    LockgateError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.ids import Token
from lockgate.storage_core.settings import MIB, load_settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.s3 import clients
from lockgate.storage_core.stores.s3.crt.answer import error_of
from lockgate.storage_core.stores.s3.crt.connections import Connections
from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint
from lockgate.storage_core.stores.s3.crt.operation import Message
from lockgate.storage_core.stores.s3.crt.transport import Transport
from lockgate.storage_core.stores.s3.errors import is_outcome_unknown
from tests.support.s3.misbehaving_server import RudeServer, answer, refusal, sends

pytestmark = pytest.mark.slow

OBJECT = b'ETag: "0123"\r\nLast-Modified: Sun, 22 Nov 2026 10:00:00 GMT\r\n'
DATA = answer(body=b"data", headers=OBJECT)
DONE = answer(body=b"", headers=OBJECT)
MOVED = sends(
    b"HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-west-3\r\nContent-Length: 0\r\n\r\n",
    keeps=True,
)


def test_frequent_calls_are_sent_by_crt_and_listings_by_boto3(
    server: RudeServer, open_at: Callable[..., Store]
) -> None:
    store = open_at()
    server.manners = [
        DATA,
        answer(body=b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"),
    ]
    assert store.get("k") == b"data"
    assert list(store.pages()) == []
    assert [b"CRTS3NativeClient" in head for _, head, _ in server.seen] == [True, False]


@pytest.mark.parametrize(
    ("start", "length", "by_boto3"),
    [(7, 4 * MIB, True), (7, 4 * MIB - 1, False), (7, None, False), (0, 64 * MIB, False)],
)
def test_boto3_reads_large_ranges_but_not_records_of_a_limited_length(
    server: RudeServer, open_at: Callable[..., Store], start: int, length: int | None, *, by_boto3: bool
) -> None:
    named = b"%bContent-Range: bytes %d-%d/%d\r\n" % (OBJECT, start, start + 3, start + 4)
    server.manners = [answer("206 Partial Content", b"data", headers=named)]
    assert open_at().get("k", start=start, length=length) == b"data"
    assert (b"boto3" in server.seen[0][1].lower()) is by_boto3


@pytest.mark.parametrize("how", ["by the setting", "without a wheel"])
def test_boto3_sends_every_call_where_crt_is_not_wanted_or_not_there(
    server: RudeServer, open_at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "without a wheel":
        monkeypatch.setattr(clients, "has_crt", lambda: False)
    store = open_at(s3_client="boto3" if how == "by the setting" else "crt")
    server.manners = [DATA]
    assert store.get("k") == b"data"
    assert b"Boto3" in server.seen[0][1]


@pytest.mark.parametrize("client", ["crt", "boto3"])
def test_the_signature_covers_each_body_that_is_sent_in_clear_text(
    server: RudeServer, open_at: Callable[..., Store], client: str
) -> None:
    store = open_at(s3_client=client)
    store.create("k", b"")
    part = store.put_part("k", "u", 1, 0, b"data")
    store.complete_upload(store.seal_upload("k", "u", Token("t" * 20), [part]))
    assert len(server.seen) == 3
    for _, head, body in server.seen:
        assert b"x-amz-content-sha256: " + sha256(body).hexdigest().encode() in head.lower()


def test_the_signature_over_tls_covers_documents_and_not_data(
    tls_server: RudeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "server.pem"))
    store = open_store("s3://lake", load_settings(s3_endpoint_url=tls_server.endpoint))
    part = store.put_part("k", "u", 1, 0, b"data")
    store.complete_upload(store.seal_upload("k", "u", Token("t" * 20), [part]))
    (_, data, _), (_, document, body) = tls_server.seen
    assert b"x-amz-content-sha256: unsigned-payload" in data.lower()
    assert b"x-amz-content-sha256: " + sha256(body).hexdigest().encode() in document.lower()


def expiring() -> Credentials:
    """Return credentials that have a new token each time they are read."""
    tokens = (f"token-{number}" for number in count(1))

    def expired() -> dict[str, str]:
        return {"access_key": "AKIDEXAMPLE", "secret_key": "secret", "token": next(tokens)} | {
            "expiry_time": (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
        }

    return RefreshableCredentials.create_from_metadata(expired(), expired, "a test")


def test_credentials_that_expire_are_read_before_each_request(
    server: RudeServer, open_at: Callable[..., Store]
) -> None:
    store = open_at(expiring)
    server.manners = [DONE, DONE]
    tokens: list[bytes] = []
    for _ in range(2):
        store.put("k", b"data")
        tokens += re.findall(rb"token-\d+", server.seen[-1][1])
    assert len(set(tokens)) == 2


def test_credentials_that_cannot_change_are_read_once(
    server: RudeServer, open_at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = create_autospec(Credentials.get_frozen_credentials, side_effect=Credentials.get_frozen_credentials)
    monkeypatch.setattr(Credentials, "get_frozen_credentials", read)
    store = open_at(lambda: Credentials("AKIDEXAMPLE", "secret", "the-token"))
    server.manners = [DONE, DONE]
    store.put("k", b"data")
    read.reset_mock()
    store.put("k", b"data")
    read.assert_not_called()
    assert all(b"the-token" in head for _, head, _ in server.seen)


@pytest.mark.parametrize("client", ["crt", "boto3"])
def test_anonymous_requests_have_no_signature(
    server: RudeServer, open_at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    server.manners = [DATA]
    assert open_at(s3_anonymous=True, s3_client=client).get("k") == b"data"
    assert b"authorization" not in server.seen[0][1].lower()


@pytest.mark.parametrize("empty", ["aws_access_key_id", "aws_secret_access_key"])
def test_an_empty_key_of_a_profile_is_named(
    server: RudeServer,
    open_at: Callable[..., Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    empty: str,
) -> None:
    keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "secret"} | {empty: ""}
    profile = "".join(f"{name} = {value}\n" for name, value in keys.items())
    (tmp_path / "credentials").write_text(f"[other]\n{profile}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for client in ("crt", "boto3"):
        with pytest.raises(AccessDeniedError, match=f"missing: {empty[4:10]}.*AWS_PROFILE"):
            open_at(s3_profile="other", s3_client=client).put("k", b"data")
    assert server.seen == []


def test_a_request_follows_its_bucket_to_another_region_once(
    server: RudeServer, open_at: Callable[..., Store]
) -> None:
    store = open_at()
    server.manners = [MOVED, DONE, DONE]
    store.create("k", b"data")
    store.create("l", b"data")
    scopes = [head.split(b"Credential=")[1].split(b"/")[2] for _, head, _ in server.seen]
    assert scopes == [b"us-east-1", b"eu-west-3", b"eu-west-3"]


def test_a_bucket_is_followed_to_the_region_in_the_document(
    server: RudeServer, open_at: Callable[..., Store]
) -> None:
    elsewhere = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>"
    server.manners = [answer("400 Bad Request", elsewhere), DONE]
    open_at().create("k", b"data")
    assert b"/eu-west-3/s3/" in server.seen[1][1]


def test_an_anonymous_request_follows_its_bucket_only_to_another_place(
    server: RudeServer, open_at: Callable[..., Store]
) -> None:
    server.manners = [MOVED]
    with pytest.raises(AccessDeniedError, match="another region"):
        open_at(s3_anonymous=True).get("k")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("client", "error"), [("crt", OutcomeUnknownError), ("boto3", StoreUnavailableError)]
)
def test_only_boto3_sees_whose_503_it_is(
    server: RudeServer, open_at: Callable[..., Store], client: str, error: type[LockgateError]
) -> None:
    server.manners = [refusal("503 Slow Down", "SlowDown")]
    with pytest.raises(error):
        open_at(s3_client=client).create("k", b"data")


@pytest.mark.parametrize("hidden", ["SLOW_DOWN", "REQUEST_TIMEOUT"])
@pytest.mark.parametrize(
    ("url", "knows_server", "is_refusal"),
    [
        ("https://lake.s3.eu-west-3.amazonaws.com", True, True),
        ("https://s3.us-east-1.amazonaws.com", True, True),
        ("https://lake.s3.eu-west-3.amazonaws.com", False, False),  # its certificate may be a proxy's
        ("http://lake.s3.eu-west-3.amazonaws.com", True, False),
        ("https://s3-fips.dualstack.us-east-1.amazonaws.com", True, True),
        ("https://ap-1.s3-accesspoint.eu-west-3.amazonaws.com", True, True),
        ("https://s3-gateway-1.eu-west-3.elb.amazonaws.com", True, False),
        ("https://s3.notamazonaws.com", True, False),
        ("https://s3.example.org", True, False),
    ],
)
def test_a_refusal_whose_answer_crt_hides_is_believed_of_s3_only(
    monkeypatch: pytest.MonkeyPatch, hidden: str, url: str, *, knows_server: bool, is_refusal: bool
) -> None:
    client = Mock(S3Client)
    client.make_request.side_effect = lambda on_done, **_: on_done(
        error=AwsCrtError(0, f"AWS_ERROR_S3_{hidden}", "hidden")
    )
    monkeypatch.setattr(Connections, "_client", lambda self, endpoint, signer: client)
    connections = Connections(
        lambda: None, ca_file="", knows_server=knows_server, connect_timeout_s=1, timeout_s=1, parallelism=1
    )
    scheme, _, host = url.partition("://")
    transport = connections.transport(Endpoint(scheme, host, "", None))

    answered = transport.send(Message("PUT", "/k", (), b"data"))()

    assert is_outcome_unknown(answered.status, error_of(answered)["Code"]) is not is_refusal


def transport_by(client: Mock) -> Transport:
    """Return a transport whose requests a mock of CRT's client takes."""
    place = Endpoint("http", "s3.example.org", "", None)
    return Transport(place, client, lambda: None, signing=None, patience_s=0.05, knows_server=False)


def test_a_request_without_an_answer_is_given_up() -> None:
    client, arrived = Mock(S3Client), Mock()
    wait = transport_by(client).send(Message("PUT", "/k", (), b""), arrived)
    with pytest.raises(ReadTimeoutError):
        wait()
    client.make_request.return_value.cancel.assert_called_once_with()
    arrived.assert_called()


def test_a_request_for_which_there_is_no_descriptor_is_not_sent() -> None:
    client = Mock(S3Client)
    client.make_request.side_effect = lambda on_done, **_: on_done(
        error=AwsCrtError(0, "AWS_ERROR_MAX_FDS_EXCEEDED", "no descriptor")
    )
    with pytest.raises(EndpointConnectionError):
        transport_by(client).send(Message("PUT", "/k", (), b""))()


def test_an_answer_without_its_result_leaves_the_outcome_unknown(
    server: RudeServer, open_at: Callable[..., Store]
) -> None:
    server.manners = [
        answer(body=b"<InitiateMultipartUploadResult><Key>k</Key></InitiateMultipartUploadResult>")
    ]
    with pytest.raises(OutcomeUnknownError, match="UploadId"):
        open_at().begin_upload("k", Token("t" * 32))


def test_a_body_that_differs_from_its_checksum_is_read_again(
    server: RudeServer, open_at: Callable[..., Store]
) -> None:
    wrong = answer(body=b"dada", headers=OBJECT + b"x-amz-checksum-crc32: rfKUOA==\r\n")
    server.manners = [wrong, DATA]
    assert open_at().get("k") == b"data"
    server.manners = [wrong, wrong]
    with pytest.raises(StoreUnavailableError, match="checksum"):
        open_at(s3_max_attempts=2).get("k")


@pytest.mark.parametrize("secret", ["", "user:p%40ss@"])
def test_boto3_sends_what_goes_through_the_proxy_of_the_environment(
    server: RudeServer, open_at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.endpoint.replace("//", f"//{secret}"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_IGNORED", f"new clients {secret}")  # clients are kept by AWS's variables
    server.manners = [DATA, DATA]
    assert open_at(s3_endpoint_url="http://far.invalid:80").get("k") == b"data"
    line, head, _ = server.seen[0]
    assert line.startswith("GET http://far.invalid")
    assert b"boto3" in head.lower()
    assert not secret or b"Proxy-Authorization: Basic " + base64.b64encode(b"user:p@ss") in head
    assert open_at(s3_region="eu-west-1").get("k") == b"data"
    line, head, _ = server.seen[1]
    assert line == "GET /lake/k HTTP/1.1"
    assert b"boto3" not in head.lower()


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "NO_PROXY", "GLOBAL_AGENT_PROXY"])
def test_crt_sends_what_no_proxy_of_the_environment_is_for(
    server: RudeServer, open_at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://proxy.invalid:80")
    monkeypatch.setenv("AWS_IGNORED", f"new clients {variable}")
    server.manners = [DATA]
    assert open_at().get("k") == b"data"
    _, head, _ = server.seen[0]
    assert b"boto3" not in head.lower()


@pytest.mark.parametrize(
    ("variables", "by_boto3"),
    [
        ({"NO_PROXY": "elsewhere, 127.0.0.1"}, False),
        ({"NO_PROXY": "*"}, False),
        ({"NO_PROXY": "127.0.0.1:{port}"}, True),
        ({"NO_PROXY": ".0.0.1"}, True),
        ({"http_proxy": ""}, True),
    ],
)
def test_boto3_sends_what_crt_would_send_to_a_proxy_against_no_proxy(
    server: RudeServer,
    open_at: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    *,
    by_boto3: bool,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(port=server.endpoint.rpartition(":")[2]))
    server.manners = [DATA]
    monkeypatch.setenv("AWS_IGNORED", f"new clients {variables}")
    assert open_at().get("k") == b"data"
    assert (b"boto3" in server.seen[0][1].lower()) is by_boto3


def _get_in_child(url: str) -> None:
    clients._clients.cache_clear()  # what the parent made is garbage here, and stays
    gc.collect()
    data = open_store("s3://lake", load_settings(s3_endpoint_url=url, s3_timeout_s=5)).get("k")
    os._exit(0 if data == b"data" else 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_a_process_that_has_sent_requests_sends_its_own(
    server: RudeServer, open_at: Callable[..., Store], method: str
) -> None:
    server.manners = [DATA] * 4
    open_at(s3_region="eu-central-1").get("k")  # nothing but the cache refers to these clients
    store = open_at()
    assert store.get("k") == b"data"
    child = multiprocessing.get_context(method).Process(target=_get_in_child, args=[server.endpoint])
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert store.get("k") == b"data"


def test_threads_that_begin_together_share_clients(open_at: Callable[..., Store]) -> None:
    settings = load_settings(s3_region="ap-south-1")
    together = threading.Barrier(8)

    def begin(_: int) -> clients.Clients:
        together.wait()
        return clients.clients_for(settings)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(id, threads.map(begin, range(8))))) == 1


@pytest.mark.parametrize("raised", [RuntimeError("still expired"), OSError("no such file")])
def test_an_error_of_a_refresh_in_boto3_is_an_error_of_access(
    open_at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    monkeypatch.setattr(Credentials, "get_frozen_credentials", Mock(side_effect=raised))
    with pytest.raises(AccessDeniedError, match=str(raised)):
        list(open_at(s3_region="sa-east-1").pages())
    with pytest.raises(AccessDeniedError, match=str(raised)):
        open_at(s3_region="sa-east-1").delete_many(["k"])


@pytest.mark.parametrize("raised", [RuntimeError("still expired"), OSError("no such file")])
def test_credentials_that_cannot_be_refreshed_are_an_error_of_access(
    server: RudeServer, open_at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    store = open_at(expiring, s3_region="eu-north-1")
    server.manners = [DATA]
    assert store.get("k") == b"data"
    monkeypatch.setattr(RefreshableCredentials, "get_frozen_credentials", Mock(side_effect=raised))
    with pytest.raises(AccessDeniedError, match=str(raised)):
        store.create("k", b"data")
    assert len(server.seen) == 1
