"""Lean calls behave like boto3's own with a server that misbehaves at every point of an exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError
from botocore.parsers import ResponseParserError
from botocore.retries.standard import ExponentialBackoff

from lockgate.storage_core.stores.s3.clients import LostTries
from lockgate.storage_core.stores.s3.fast_path.connection import Answer
from lockgate.storage_core.stores.s3.fast_path.endpoint import make_lean
from tests.support.s3.misbehaving_server import (
    COMPLETED,
    Manner,
    RudeServer,
    answer,
    hangs_up,
    refusal,
    resets,
    rude_server,
    sends,
)

Clients = Callable[[int], list[Any]]

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "put": lambda client: client.put_object(Bucket="lake", Key="k", Body=b"bytes", ChecksumCRC32="AAAAAA=="),
    "get": lambda client: client.get_object(Bucket="lake", Key="k")["Body"].read(),
    "head": lambda client: client.head_object(Bucket="lake", Key="k"),
    "complete": lambda client: client.complete_multipart_upload(
        Bucket="lake", Key="k", UploadId="u", MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": '"e"'}]}
    ),
}
TRIES = {"put": 3, "get": 3, "head": 3, "complete": 1}
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b'ETag: "e"\r\nContent-Length: %d\r\n\r\n%b' % (len(COMPLETED), COMPLETED)
ERROR = b"<Error><Code>InternalError</Code><Message>inside a 200</Message></Error>"
MANNERS: dict[str, Manner] = {
    "answers well": answer(),
    "answers well and hangs up": answer(keeps=False),
    "says that it will hang up": answer(headers=b'ETag: "e"\r\nConnection: close\r\n', keeps=False),
    "hangs up": hangs_up,
    "resets": resets,
    "hangs up in the status": sends(b"HTTP/1.1 20"),
    "hangs up after the status": sends(OK),
    "hangs up in the headers": sends(OK + b"ETag: "),
    "hangs up before the body": sends(OK + b'ETag: "e"\r\nContent-Length: 9\r\n\r\n'),
    "hangs up in the body": sends(OK + b'ETag: "e"\r\nContent-Length: 9\r\n\r\n<Comp'),
    "speaks no HTTP": sends(b"220 ready\r\n\r\n"),
    "speaks another HTTP": sends(b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "speaks old HTTP": sends(WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0")),
    "has a status that is none": sends(WHOLE.replace(b"200 OK", b"abc OK")),
    "has no reason": sends(WHOLE.replace(b"200 OK", b"200")),
    "ends lines by line feeds": sends(WHOLE.replace(b"\r\n", b"\n")),
    "folds a header": sends(WHOLE.replace(b'"e"\r\n', b'"e"\r\nx-amz-expiration: one\r\n two\r\n')),
    "repeats a header": sends(WHOLE.replace(b'"e"\r\n', b'"e"\r\nx-amz-id-2: a\r\nX-Amz-Id-2: b\r\n')),
    "has a header without a colon": sends(WHOLE.replace(b'"e"\r\n', b'"e"\r\nnonsense\r\n')),
    "has a header that is not ASCII": sends(WHOLE.replace(b'"e"\r\n', b'"e"\r\nx-amz-expiration: \xe9\r\n')),
    "has metadata": sends(WHOLE.replace(b'"e"\r\n', b'"e"\r\nX-Amz-Meta-Owner: me\r\nx-amz-meta-b:c\r\n')),
    "gives dates": sends(
        WHOLE.replace(b'"e"\r\n', b'"e"\r\nLast-Modified: Sun, 22 Nov 2026 13:34:09 GMT\r\nExpires: 0\r\n')
    ),
    "says how long in words": sends(WHOLE.replace(b"Content-Length: ", b"Content-Length: about ")),
    "is shorter than it says": sends(WHOLE[:-3]),
    "does not say how long": sends(WHOLE.replace(b"Content-Length", b"X-Length")),
    "comes in chunks": sends(
        OK
        + b'ETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n'
        % (len(COMPLETED), COMPLETED),
        keeps=True,
    ),
    "breaks off in a chunk": sends(OK + b'ETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n20\r\nshort'),
    "comes letter by letter": sends(WHOLE, piece=1, keeps=True),
    "continues first": sends(b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, keeps=True),
    "has nothing to say": sends(b'HTTP/1.1 204 No Content\r\nETag: "e"\r\n\r\n', keeps=True),
    "fails inside": refusal("500 Internal Server Error", "InternalError"),
    "fails in HTML": answer("502 Bad Gateway", b"<html><body>no</body></html>"),
    "fails without a word": answer("504 Gateway Timeout", b""),
    "is busy": refusal("503 Slow Down", "SlowDown"),
    "was too slow for it": refusal("400 Bad Request", "RequestTimeout"),
    "has too much to do": answer("429 Too Many Requests", b""),
    "fails inside a 200": answer(body=ERROR),
    "fails after spaces inside a 200": answer(body=b"\n\n  " + ERROR),
    "answers with another document": answer(body=b"<html/>"),
    "answers with half a document": answer(body=b"<CompleteMultipart"),
    "denies": refusal("403 Forbidden", "AccessDenied"),
    "tells that the token has expired": refusal("400 Bad Request", "ExpiredToken"),
    "has another time": refusal("403 Forbidden", "RequestTimeTooSkewed"),
    "has no such object": refusal("404 Not Found", "NoSuchKey"),
    "has no such upload": refusal("404 Not Found", "NoSuchUpload"),
    "has another version": refusal("412 Precondition Failed", "PreconditionFailed"),
    "is in a conflict": refusal("409 Conflict", "ConditionalRequestConflict"),
    "does not have that much": refusal("416 Range Not Satisfiable", "InvalidRange"),
    "has not changed": sends(b'HTTP/1.1 304 Not Modified\r\nETag: "e"\r\n\r\n', keeps=True),
}
REDIRECTS: dict[str, Manner] = {
    "in a header": answer(
        "301 Moved Permanently",
        b"<Error><Code>PermanentRedirect</Code></Error>",
        headers=b"x-amz-bucket-region: eu-west-3\r\n",
    ),
    "in the document": answer(
        "400 Bad Request",
        b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>",
    ),
}


@pytest.fixture(scope="module")
def sessions() -> dict[bool, boto3.Session]:
    by_kind = {
        lean: boto3.Session("AKIDEXAMPLE", "secret", region_name="us-east-1") for lean in (True, False)
    }
    make_lean(by_kind[True])
    return by_kind


@pytest.fixture(scope="module")
def server() -> Iterator[RudeServer]:
    with rude_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_pause_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)


@pytest.fixture(scope="module")
def new_clients(sessions: dict[bool, boto3.Session], server: RudeServer) -> Clients:
    def clients(tries: int) -> list[Any]:
        config = Config(
            retries={"mode": "standard", "total_max_attempts": tries},
            s3={"addressing_style": "path"},
            read_timeout=10,
        )
        return [
            sessions[lean].client("s3", endpoint_url=server.endpoint, config=config) for lean in (True, False)
        ]

    return clients


@pytest.fixture(scope="module")
def lean_and_boto3(new_clients: Clients) -> Clients:
    """Return the function that makes the clients shared by the tests."""
    return cache(new_clients)


def outcome_of(operation: str, client: Any, server: RudeServer, *manners: Manner) -> dict[str, Any]:
    """Make a call that the server answers in the given manners, after two successful calls."""
    for _ in range(2):
        OPERATIONS[operation](client)
    lost = LostTries()
    client.meta.events.register("needs-retry.s3", lost.note, unique_id="lost")
    server.manners, server.seen = list(manners), []
    try:
        result: Any = _plain(OPERATIONS[operation](client))
    except ClientError as fault:
        result = type(fault).__name__, str(fault), fault.response
    except (BotoCoreError, ResponseParserError, ValueError) as fault:
        result = type(fault)
    server.manners = []
    server.wait()
    client.meta.events.unregister("needs-retry.s3", unique_id="lost")
    requests = [(first, body) for first, _, body in server.seen]
    # Afterwards a connection is usable exactly if boto3's is.
    again = _plain(OPERATIONS[operation](client))
    return {"result": result, "requests": requests, "lost": lost.seen, "again": again}


def _plain(answer: Any) -> Any:
    """Remove the note that boto3 has no tries left, which it adds to successes too."""
    if isinstance(answer, dict):
        answer["ResponseMetadata"].pop("MaxAttemptsReached", None)
    return answer


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("manner", MANNERS)
def test_a_lean_call_has_the_same_outcome_as_with_boto3_whatever_the_server_does(
    lean_and_boto3: Clients, server: RudeServer, manner: str, operation: str
) -> None:
    lean, boto3s = (
        outcome_of(operation, client, server, MANNERS[manner]) for client in lean_and_boto3(TRIES[operation])
    )
    assert lean == boto3s


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_number_of_tries_equals_that_of_boto3(
    lean_and_boto3: Clients, server: RudeServer, operation: str
) -> None:
    manners = [hangs_up, refusal("503 Slow Down", "SlowDown"), answer("500 Oh", b""), answer()]
    lean, boto3s = (outcome_of(operation, client, server, *manners) for client in lean_and_boto3(3))
    assert lean == boto3s
    assert len(lean["requests"]) == 3
    assert lean["lost"]


def test_a_call_that_must_be_sent_once_is_not_sent_again_when_a_kept_connection_breaks(
    lean_and_boto3: Clients, server: RudeServer
) -> None:
    client = lean_and_boto3(1)[0]
    assert outcome_of("complete", client, server, hangs_up)["result"] is ConnectionClosedError
    assert len(server.seen) == 2


def test_a_connection_closed_by_the_server_between_calls_is_not_used(
    lean_and_boto3: Clients, server: RudeServer
) -> None:
    client = lean_and_boto3(1)[0]
    OPERATIONS["put"](client)
    server.manners = [answer(keeps=False)]
    OPERATIONS["put"](client)
    server.wait()
    before = server.connections
    OPERATIONS["put"](client)
    assert server.connections == before + 1


def test_calls_share_a_connection_and_a_simple_response_head_is_read_in_one_go(
    lean_and_boto3: Clients, server: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = lean_and_boto3(1)[0]
    OPERATIONS["put"](client)
    before = server.connections
    begun: list[Answer] = []
    begin = Answer.begin
    monkeypatch.setattr(Answer, "begin", lambda answer: (begun.append(answer), begin(answer)))
    monkeypatch.setattr("http.client.parse_headers", None)
    for _ in range(3):
        OPERATIONS["put"](client)
    assert server.connections == before
    assert len(begun) == 3


@pytest.mark.parametrize("manner", REDIRECTS)
def test_requests_to_a_bucket_in_another_region_are_signed_for_that_region(
    new_clients: Clients, server: RudeServer, manner: str
) -> None:
    signed: list[list[str]] = []
    for client in new_clients(3):
        outcome_of("get", client, server, REDIRECTS[manner])
        OPERATIONS["get"](client)
        heads = [head.decode() for _, head, _ in server.seen]
        signed.append([head.partition("Credential=")[2].split("/")[2] for head in heads])
    assert signed[0] == signed[1] == ["us-east-1", "eu-west-3", "eu-west-3", "eu-west-3"]


def test_a_silent_server_is_abandoned_as_by_boto3(
    sessions: dict[bool, boto3.Session], server: RudeServer
) -> None:
    def sends_nothing(connection: Any) -> bool:
        connection.recv(1)
        return False

    outcomes = []
    for lean in (True, False):
        config = Config(retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=3)
        client = sessions[lean].client("s3", endpoint_url=server.endpoint, config=config)
        outcomes.append(outcome_of("put", client, server, sends_nothing)["result"])
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].__name__ == "ReadTimeoutError"
