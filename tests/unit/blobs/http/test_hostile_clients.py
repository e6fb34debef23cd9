"""A client with a token for its own job cannot exhaust the server's memory, nor disturb another job."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest
import urllib3
from starlette.requests import Request

from lockgate.storage_core.blobs.http.client.client import BlobClient
from lockgate.storage_core.blobs.http.server import service
from lockgate.storage_core.blobs.http.server.auth.bearer import BearerTokens
from lockgate.storage_core.errors import AccessDeniedError, InvalidInputError, StoreUnavailableError
from lockgate.storage_core.http.server import received_body
from lockgate.storage_core.http.server.received_body import JsonBudget, content_length
from lockgate.storage_core.http.server.token_file import TokenFile
from tests.support.blobs.http_server import PATIENCE_S, client_of, served
from tests.support.blobs.server import BlobWorld, blob_world, key_of

VICTIM, SQUATTER = "71c71" * 6, "50a77" * 6
KIB = 1024


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BlobWorld]:
    with blob_world(tmp_path) as world:
        yield world


@pytest.fixture
def url(world: BlobWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(service, "_ALL_CALLS_BYTES", 400 * KIB)
    tokens = written(tmp_path / "tokens", f"{VICTIM} victim\n{SQUATTER} squatter\n")
    with served(world.server, BearerTokens(TokenFile(tokens)), idle_s=30.0) as url:
        yield url


@pytest.fixture
def victim(url: str, tmp_path: Path) -> Iterator[BlobClient]:
    with client_of(url, token_file=written(tmp_path / "victim", VICTIM)) as client:
        yield client


@pytest.fixture
def squatter(url: str, tmp_path: Path) -> Iterator[BlobClient]:
    with client_of(url, token_file=written(tmp_path / "squatter", SQUATTER)) as client:
        yield client


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def now_of(url: str, owner: str, token: str) -> float:
    headers = {"authorization": f"Bearer {token}"}
    answer = urllib3.request("GET", f"{url}/now", fields={"owner": owner}, headers=headers)
    return float(json.loads(answer.data)["at_s"])


def submit(url: str, length: str, sent: bytes) -> socket.socket:
    """Begin to submit a job, with a part of the body."""
    connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S)
    head = f"POST /jobs/squatter/submit HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SQUATTER}\r\n"
    connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode() + sent)
    return connection


def eventually(is_so: Callable[[], bool]) -> bool:
    until_s = monotonic() + PATIENCE_S
    while not is_so():
        if monotonic() > until_s:
            return False
        sleep(0.01)
    return True


def test_the_json_bodies_of_all_connections_share_one_budget(
    url: str, victim: BlobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    take = JsonBudget.take

    def noted(self: JsonBudget, scope: object, received: int) -> None:
        take(self, scope, received)  # type: ignore[arg-type]
        held.append(self._held_bytes)

    monkeypatch.setattr(JsonBudget, "take", noted)
    blob = victim.put(b"library", job_id="victim", owners=["job"])
    with ExitStack() as stack:
        body = b'{"blob_keys": ["' + b"x" * 300 * KIB
        stack.enter_context(submit(url, str(KIB * KIB), body))
        assert eventually(lambda: max(held, default=0) > 200 * KIB)
        with submit(url, str(KIB * KIB), body) as refused:
            assert refused.recv(65_536).startswith(b"HTTP/1.1 503")
        victim.refer(*key_of(blob), "viewer:1")  # small calls go on
    assert eventually(lambda: held[-1] == 0 or submitted(url, 300 * KIB))
    assert max(held) <= 400 * KIB


def submitted(url: str, size: int) -> bool:
    """Return whether a call with a body of this size is read: its content is refused then."""
    body = b'{"blob_keys": ["' + b"x" * size + b'"]}'
    with submit(url, str(len(body)), body) as connection:
        return connection.recv(65_536).startswith(b"HTTP/1.1 400")


def test_a_json_body_that_arrives_too_slowly_is_abandoned(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received_body, "JSON_TIMES", 0.001)
    with served(world.server, idle_s=60.0) as url, submit(url, "1000", b'{"blob_keys": [') as slow:
        assert slow.recv(65_536).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("length", ["9" * 5_000, "9" * 19, "-1", "1.5", "\u0663", "x", ""])
def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    with pytest.raises(InvalidInputError, match="Content-Length"):
        content_length(request_with(length.encode("utf-8")))


def test_a_length_is_read() -> None:
    assert content_length(request_with(b"1048576")) == 1_048_576


@pytest.mark.parametrize("call", ["submit", "blobs"])
def test_a_length_of_5000_digits_is_answered_with_400(url: str, call: str) -> None:
    path = "/jobs/squatter/submit" if call == "submit" else "/jobs/squatter/blobs"
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S) as sending:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SQUATTER}\r\n"
        sending.sendall(f"{head}content-length: {'9' * 5_000}\r\n\r\n".encode())
        assert sending.recv(65_536).startswith(b"HTTP/1.1 400")


def request_with(length: bytes) -> Request:
    return Request({"type": "http", "headers": [(b"content-length", length)]})


def test_a_name_of_an_owner_that_another_job_uses_can_still_be_dropped_by_it(
    victim: BlobClient, squatter: BlobClient, world: BlobWorld
) -> None:
    own = victim.put(b"message", job_id="victim", owners=["receiver:1"])
    squatted = squatter.put(b"nothing", job_id="squatter", owners=["receiver:1"])
    assert victim.drop_owner("receiver:1") == 1
    assert (world.owners(own), world.owners(squatted)) == ([], ["receiver:1"])
    with pytest.raises(AccessDeniedError, match="does not open job squatter"):
        victim.drop_owner("receiver:1")
    assert squatter.drop_owner("receiver:1") == 1


def test_the_time_of_an_owner_does_not_reveal_references_of_other_jobs(
    url: str, victim: BlobClient, world: BlobWorld
) -> None:
    victim.put(b"message", job_id="victim", owners=["receiver:1"])
    world.clock.sleep(-3_600.0)
    now_s = world.clock.now_s()
    assert now_of(url, "receiver:1", SQUATTER) == now_of(url, "unused", SQUATTER) == now_s
    assert now_of(url, "receiver:1", VICTIM) == now_s + 3_600.0


def test_a_request_returns_what_it_held_of_the_budget() -> None:
    budget = JsonBudget(100)
    first: dict[str, object] = {}
    second: dict[str, object] = {}
    budget.take(first, received_body.UNCOUNTED_BYTES + 60)
    budget.take(first, received_body.UNCOUNTED_BYTES + 90)
    with pytest.raises(StoreUnavailableError):
        budget.take(second, received_body.UNCOUNTED_BYTES + 11)
    budget.take(second, received_body.UNCOUNTED_BYTES + 10)
    budget.release(first)
    budget.release(first)
    budget.release(second)
    budget.take(second, received_body.UNCOUNTED_BYTES + 100)
