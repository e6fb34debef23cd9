"""A blob server's process: graceful stop, kill, and blobs larger than its memory limit."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest

from lockgate.storage_core.blobs.registry.blob_rows import Blob, UploadSet
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.journal import open_journal
from tests.support.blobs.http_server import client_of
from tests.support.processes.blob_server import ServerProcess, server_process

pytestmark = pytest.mark.fault

MIB = 1024 * 1024


def rows(root: Path, kind: type[Blob] | type[UploadSet]) -> list[Blob | UploadSet]:
    with open_journal(f"sqlite:///{root}/journal.db") as journal, journal.reading() as reading:
        return list(reading.where(kind, {}))


def under_way(root: Path) -> list[Path]:
    folder = root / "blobs" / ".incoming"
    return list(folder.iterdir()) if folder.exists() else []


def listens(url: str) -> bool:
    with (
        suppress(ConnectionError),  # refused, or reset: it closed between the handshake and the accept
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))),
    ):
        return True
    return False


def test_a_server_that_is_asked_to_stop_finishes_its_current_requests(tmp_path: Path) -> None:
    def source(server: ServerProcess) -> Iterator[bytes]:
        yield b"first" * MIB
        server.process.terminate()
        while listens(server.url):
            pass
        yield b"last" * MIB

    with server_process(tmp_path) as server:
        with client_of(server.url) as client:
            blob = client.put(source(server), job_id="sales")
        assert server.wait() == 0  # a second signal would meet an interpreter that is ending
        local = LocalBlobs(tmp_path / "blobs")
        assert local.verified("sales", blob.blob_key).stat().st_size == 9 * MIB
    assert [row.blob_key for row in rows(tmp_path, Blob) if isinstance(row, Blob)] == [blob.blob_key]
    assert rows(tmp_path, UploadSet) == []


class KillsOnce:
    """A rereadable source; during its first read the server is killed and restarted."""

    def __init__(self, server: ServerProcess, *pieces: bytes) -> None:
        self._server = server
        self._pieces = pieces
        self._has_killed = False

    def __iter__(self) -> Iterator[bytes]:
        yield self._pieces[0]
        if not self._has_killed:
            self._has_killed = True
            while not any(path.stat().st_size for path in under_way(self._server.root)):
                sleep(0.01)
            self._server.kill()
            self._server.start()
        yield from self._pieces[1:]


def test_an_upload_survives_the_death_of_the_server(tmp_path: Path) -> None:
    pieces = [os.urandom(2 * MIB) for _ in range(3)]
    with server_process(tmp_path) as server, client_of(server.url) as client:
        blob = client.put(KillsOnce(server, *pieces), job_id="sales")
        assert client.get("sales", blob.blob_key) == b"".join(pieces)
        assert [row.blob_key for row in client.page("sales")] == [blob.blob_key]
    local = LocalBlobs(tmp_path / "blobs")
    assert [found.blob_key for found in local.blobs("sales")] == [blob.blob_key]


@pytest.mark.soak
def test_a_stream_that_failed_with_the_server_leaves_nothing_after_its_restart(tmp_path: Path) -> None:
    with server_process(tmp_path) as server, client_of(server.url) as client:
        source = KillsOnce(server, *[b"x" * 2 * MIB] * 3)
        with pytest.raises(OutcomeUnknownError, match="cannot be read again"):
            client.put(iter(source), job_id="sales")
        assert client.page("sales") == ()
    assert under_way(tmp_path) == []


def test_a_download_survives_the_death_of_the_server(tmp_path: Path) -> None:
    data = os.urandom(24 * MIB)
    with server_process(tmp_path) as server, client_of(server.url) as client:
        blob = client.put(data, job_id="sales")

        death_bytes = 4 * MIB

        def kill_once(size_bytes: int) -> None:
            nonlocal death_bytes
            if size_bytes >= death_bytes:
                death_bytes = len(data) + 1
                server.kill()
                server.start()

        fetched = client.fetch(LocalBlobs(tmp_path / "cache", on_bytes=kill_once), "sales", blob.blob_key)
        assert fetched.read_bytes() == data


@pytest.mark.soak
def test_memory_is_constant_in_the_size_of_a_blob(tmp_path: Path) -> None:
    options = {"LOCKGATE_PART_BYTES": str(5 * MIB), "LOCKGATE_PARALLELISM": "2"}
    with server_process(tmp_path, options) as server, client_of(server.url) as client:
        piece = os.urandom(MIB)

        def moved(pieces: int) -> int:
            """Put a blob, get it, and get it again from the HA store; return the server's peak memory."""
            blob = client.put((piece for _ in range(pieces)), job_id="sales")
            cache = LocalBlobs(tmp_path / "cache")
            client.fetch(cache, "sales", blob.blob_key)
            (tmp_path / "blobs" / "sales" / blob.blob_key).unlink()
            cache.delete_all()
            client.fetch(cache, "sales", blob.blob_key)
            cache.delete_all()
            return server.peak_bytes()

        small = moved(32)
        assert moved(400) - small < 64 * MIB
