"""Connections that break, stall or corrupt bytes leave no truncated or duplicate blob or temporary file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest
import urllib3

from lockgate.storage_core.blobs.http.client import BlobClient
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.http import server
from lockgate.storage_core.http.connection import TRIES
from tests.support.blobs.http_server import PATIENCE_S, Proxy, client_of, proxy_to, served
from tests.support.blobs.server import BlobWorld, key_of

MIB = 1024 * 1024


@pytest.fixture
def url(world: BlobWorld) -> Iterator[str]:
    with served(world.server) as url:
        yield url


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with proxy_to(url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[BlobClient]:
    with client_of(proxy.url) as client:
        yield client


def under_way(world: BlobWorld) -> list[Path]:
    folder = world.server.stores.local.path / ".incoming"
    return list(folder.iterdir()) if folder.exists() else []


def eventually(is_so: Callable[[], bool]) -> bool:
    """Wait until a condition that another thread fulfils is true."""
    until_s = monotonic() + PATIENCE_S
    while not is_so():
        if monotonic() > until_s:
            return False
        sleep(0.01)
    return True


def sent_bytes(url: str) -> float:
    figures = urllib3.request("GET", f"{url}/metrics").data.decode()
    line = next(
        line
        for line in figures.splitlines()
        if line.startswith('lockgate_blobs_bytes_total{direction="out",verb="get"}')
    )
    return float(line.rpartition(" ")[2])


def test_a_broken_download_resumes_at_its_last_byte(
    client: BlobClient, proxy: Proxy, world: BlobWorld, tmp_path: Path, url: str
) -> None:
    data = os.urandom(8 * MIB)
    blob = world.server.put(data)
    proxy.breaks.extend([("down", 5 * MIB), ("down", 1), ("down", 2 * MIB)])
    fetched = client.fetch(LocalBlobs(tmp_path / "cache"), *key_of(blob))
    assert fetched.read_bytes() == data
    assert proxy.connections == 4
    assert sent_bytes(url) < 2 * len(data)


def test_a_download_without_progress_is_abandoned_and_leaves_no_file(
    client: BlobClient, proxy: Proxy, world: BlobWorld, tmp_path: Path
) -> None:
    blob = world.server.put(b"some bytes")
    proxy.breaks.extend([("down", 1)] * TRIES)
    cache = LocalBlobs(tmp_path / "cache")
    with pytest.raises(StoreUnavailableError, match="broke off"):
        client.fetch(cache, *key_of(blob))
    assert list(cache.jobs()) == []
    assert list((cache.path / ".incoming").iterdir()) == []


def test_bytes_damaged_in_transit_are_requested_again(
    client: BlobClient, proxy: Proxy, world: BlobWorld
) -> None:
    data = os.urandom(2 * MIB)
    blob = world.server.put(data)
    proxy.damages.append(MIB)
    with client_of(proxy.url) as other:  # this client's connection is the damaged one
        assert other.get(*key_of(blob)) == data


def test_a_broken_upload_restarts_if_its_source_can_be_read_again(
    client: BlobClient, proxy: Proxy, world: BlobWorld, tmp_path: Path
) -> None:
    data = os.urandom(4 * MIB)
    (tmp_path / "file").write_bytes(data)
    for source in (data, tmp_path / "file", [data[:MIB], data[MIB:]]):
        proxy.breaks.extend([("up", 2 * MIB)] * 2)
        with client_of(proxy.url) as fresh:
            blob = fresh.put(source, job_id="sales")
        assert world.server.get(*key_of(blob)) == data
    assert len(list(world.server.stores.local.blobs("sales"))) == 3
    assert eventually(lambda: not under_way(world))


def test_a_broken_upload_of_a_stream_raises_an_error_and_leaves_nothing(
    client: BlobClient, proxy: Proxy, world: BlobWorld
) -> None:
    proxy.breaks.append(("up", 2 * MIB))
    with pytest.raises(OutcomeUnknownError, match="cannot be read again"):
        client.put(iter([os.urandom(MIB)] * 4), job_id="sales")
    assert eventually(lambda: not under_way(world))
    assert list(world.server.stores.local.blobs("sales")) == []
    assert proxy.connections == 1


def test_a_put_whose_response_is_lost_creates_one_blob(
    client: BlobClient, proxy: Proxy, world: BlobWorld
) -> None:
    proxy.breaks.extend([("down", 1)] * 3)
    blob = client.put(b"some bytes", job_id="sales", owners=["job"])
    assert proxy.connections == 4
    assert [row.blob_key for row in world.server.page("sales")] == [blob.blob_key]
    assert [found.blob_key for found in world.server.stores.local.blobs("sales")] == [blob.blob_key]


def test_a_put_that_never_gets_a_response_has_an_unknown_outcome(client: BlobClient, proxy: Proxy) -> None:
    proxy.breaks.extend([("down", 1)] * TRIES)
    with pytest.raises(OutcomeUnknownError, match="gave no answer"):
        client.put(b"some bytes", job_id="sales")


def test_a_client_that_disconnects_leaves_nothing(url: str, world: BlobWorld) -> None:
    with raw(url) as sending:
        sending.sendall(head("PUT", "/jobs/sales/blobs", {"content-length": 4 * MIB}) + b"x" * MIB)
        assert eventually(lambda: bool(under_way(world)))
    assert eventually(lambda: not under_way(world))
    assert list(world.server.stores.local.blobs("sales")) == []


def test_a_stalled_request_body_is_abandoned(world: BlobWorld) -> None:
    with served(world.server, idle_s=0.05) as url, raw(url) as sending:
        sending.sendall(head("PUT", "/jobs/sales/blobs", {"content-length": 4 * MIB}) + b"x" * 10)
        answer = everything(sending)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"StoreUnavailableError" in answer
    assert b"connection: close" in answer
    assert under_way(world) == []


def test_requests_over_the_limit_of_connections_are_refused_until_another_has_closed(
    world: BlobWorld,
) -> None:
    with served(world.server, connections=2) as url, raw(url) as first:
        first.sendall(head("GET", "/health", {}))
        assert first.recv(65_536).startswith(b"HTTP/1.1 200")
        with raw(url) as second:
            second.sendall(head("GET", "/health", {}))
            assert everything(second).startswith(b"HTTP/1.1 503")
        first.close()
        with client_of(url) as client:
            assert eventually(lambda: is_heard(client))


def test_a_client_that_reads_nothing_does_not_keep_a_file_open_for_ever(world: BlobWorld) -> None:
    blob = world.server.put(os.urandom(32 * MIB))
    with served(world.server, idle_s=0.05) as url, raw(url) as asking:
        asking.sendall(head("GET", f"/jobs/no_job/blobs/{blob.blob_key}", {}))
        gone = 'lockgate_blobs_requests_total{outcome="gone",verb="get"} 1.0'
        assert eventually(lambda: gone in urllib3.request("GET", f"{url}/metrics").data.decode())


def test_a_connection_without_a_request_is_closed(world: BlobWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    with served(world.server) as url, raw(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        assert everything(connection) == b""


def test_a_further_request_without_an_end_is_closed(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    with served(world.server) as url, raw(url) as connection:
        connection.sendall(head("GET", "/health", {}))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        assert everything(connection) == b""


def test_headers_without_an_end_are_refused(url: str) -> None:
    with raw(url) as sending, suppress(ConnectionError):
        sending.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx: ")
        for _ in range(1_000):
            sending.sendall(b"y" * 65_536)
        pytest.fail("65 MB of headers were read")


def is_heard(client: BlobClient) -> bool:
    try:
        return client.page("sales") == ()
    except StoreUnavailableError:
        return False


def raw(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S)


def head(verb: str, path: str, headers: dict[str, object]) -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "host: localhost", *(f"{name}: {it}" for name, it in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def everything(sending: socket.socket) -> bytes:
    """Read until the other end closes the connection."""
    pieces = []
    while piece := sending.recv(65_536):
        pieces.append(piece)
    return b"".join(pieces)
