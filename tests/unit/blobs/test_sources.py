"""Sources of a put: files that change while they are read, and files that are forwarded meanwhile."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.blob_protocol import Blobs
from lockgate.storage_core.blobs.file_transfer import LocalFile, files_below, upload
from lockgate.storage_core.blobs.sources import ObservedFile
from lockgate.storage_core.blobs.storage.incoming_file import BACKGROUND_BYTES, Hashing
from lockgate.storage_core.errors import InvalidInputError, StoreUnavailableError
from tests.support.blobs.http_server import client_of, served
from tests.support.blobs.server import PART_BYTES, BlobWorld, key_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"as it was" * PART_BYTES)
    return path


def test_bytes_appended_to_a_file_during_its_put_are_left_out(world: BlobWorld, file: Path) -> None:
    before = file.read_bytes()

    def append(_: int) -> None:
        with file.open("ab") as more:
            more.write(b"more")

    blob = world.server.put(ObservedFile(file, append), job_id="sales")
    assert file.stat().st_size > len(before)
    assert world.server.get(*key_of(blob)) == before


def test_a_file_truncated_during_its_put_leaves_nothing(world: BlobWorld, file: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="became shorter"):
        world.server.put(ObservedFile(file, lambda _: file.write_bytes(b"")), job_id="sales")
    assert not list(world.server.stores.local.blobs("sales"))
    assert not world.server.page("sales")


@pytest.mark.parametrize("over_http", [False, True])
def test_a_path_to_something_other_than_a_regular_file_is_refused_and_not_read_as_empty(
    world: BlobWorld, tmp_path: Path, over_http: bool
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ExitStack() as held:
        blobs: Blobs = world.server
        if over_http:
            blobs = held.enter_context(client_of(held.enter_context(served(world.server))))
        for path in (pipe, Path("/dev/null"), tmp_path):
            with pytest.raises(InvalidInputError, match="is not a regular file"):
                blobs.put(path, job_id="sales")
            with pytest.raises(InvalidInputError, match="is not a regular file"):
                upload(blobs, [LocalFile(path=path, name="one", size_bytes=0)], job_id="sales")
    assert not world.server.page("sales")


def test_files_uploaded_over_http_are_forwarded_to_the_ha_store_before_they_are_complete(
    world: BlobWorld, file: Path
) -> None:
    reported: list[int] = []
    expected: list[bool] = []
    arriving = world.server.ingest.receiving

    def seen(*arguments: object, **named: object) -> object:
        held = arriving(*arguments, **named)  # type: ignore[arg-type]
        expected.append(named.get("size_bytes") == file.stat().st_size)
        return held

    world.server.ingest.receiving = seen  # type: ignore[method-assign, assignment]
    with served(world.server) as url, client_of(url) as client:
        (uploaded,) = upload(
            client, files_below([file]), job_id="sales", progress=lambda _, done, __: reported.append(done)
        )
    assert expected == [True]
    assert reported[-1] == file.stat().st_size
    assert world.server.get("sales", uploaded.blob_key) == file.read_bytes()


def test_large_pieces_are_hashed_in_order() -> None:
    sizes = [1, BACKGROUND_BYTES, 1, BACKGROUND_BYTES + 1, BACKGROUND_BYTES]
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    hashing = Hashing()
    for piece in pieces:
        hashing.update(piece)
    digest = hashing.hexdigest()
    hashing.close()
    assert digest == hashlib.sha256(b"".join(pieces)).hexdigest()
