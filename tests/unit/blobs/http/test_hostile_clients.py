"""A client with a token for its own job cannot exhaust the server's memory, nor disturb another job."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from select import select

import pytest
import urllib3

from lockgate.storage_core.blobs.http import service
from lockgate.storage_core.blobs.http.access import BearerTokens
from lockgate.storage_core.blobs.http.client import BlobClient
from lockgate.storage_core.errors import AccessDeniedError
from tests.support.blobs.http_server import PATIENCE_S, client_of, served
from tests.support.blobs.server import BlobWorld

VICTIM, SQUATTER = "71c71" * 6, "50a77" * 6
KIB = 1024


@pytest.fixture
def url(world: BlobWorld, tmp_path: Path) -> Iterator[str]:
    tokens = written(tmp_path / "tokens", f"{VICTIM} victim\n{SQUATTER} squatter\n")
    with served(world.server, BearerTokens(tokens), idle_s=30.0) as url:
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


def submit(url: str, length: int, sent: bytes) -> socket.socket:
    """Begin to submit a job, with a part of the body."""
    connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S)
    head = f"POST /jobs/squatter/submit HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SQUATTER}\r\n"
    connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode() + sent)
    return connection


def test_large_json_bodies_are_read_one_after_the_other_and_small_calls_go_on(
    world: BlobWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LARGE_BODIES", 1)
    tokens = BearerTokens(written(tmp_path / "tokens", f"{SQUATTER} squatter\n"))
    body = b'{"blob_keys": ["' + b"x" * 100 * KIB + b'"]}'
    with (
        served(world.server, tokens) as url,
        submit(url, len(body), body[:-1]) as slow,
        submit(url, len(body), body) as waiting,
    ):
        with submit(url, 2, b"{}") as small:
            assert small.recv(65_536).startswith(b"HTTP/1.1 400")
        assert select([slow, waiting], [], [], 0)[0] == []
        slow.sendall(body[-1:])
        for connection in (slow, waiting):
            assert connection.recv(65_536).startswith(b"HTTP/1.1 400")  # read: there is no such key


def test_a_length_of_5000_digits_is_answered_with_400(url: str) -> None:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S) as sending:
        head = f"POST /jobs/squatter/submit HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SQUATTER}\r\n"
        sending.sendall(f"{head}content-length: {'9' * 5_000}\r\n\r\n".encode())
        assert sending.recv(65_536).startswith(b"HTTP/1.1 400")


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
