"""The settings decide whether a remote blob server is used or one in this process."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from lockgate.storage_core.blobs.http.client import BlobClient
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.settings import Settings
from tests.support.blobs.http_server import served
from tests.support.blobs.server import blob_world, key_of


def test_without_a_url_this_process_is_its_own_server(settings: Settings) -> None:
    with open_blobs(settings) as blobs:
        assert isinstance(blobs, BlobServer)
        assert blobs.get(*key_of(blobs.put(b"some bytes"))) == b"some bytes"


def test_with_a_url_a_client_of_that_server_is_opened(settings: Settings, tmp_path: Path) -> None:
    with blob_world(tmp_path) as world, served(world.server) as url:
        there = structs.replace(settings, blob_server_url=f"{url}/")
        with open_blobs(there) as blobs:
            assert isinstance(blobs, BlobClient)
            assert blobs.url == url
            assert world.server.get(*key_of(blobs.put(b"some bytes"))) == b"some bytes"
