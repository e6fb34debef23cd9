"""Blobs of each kind, from put to deletion, over each kind of HA store."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lockgate.storage_core.blobs.blob_protocol import BlobInfo
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey, check_blob_key, digest_of
from lockgate.storage_core.blobs.registry.blob_rows import Guarantee
from lockgate.storage_core.blobs.sources import Source
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import (
    InvalidInputError,
    ObjectNotFoundError,
)
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.instrumented import instrument
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.blobs.remains import everything, sweep_twice
from tests.support.blobs.server import INTERVAL_S, PART_BYTES, BlobWorld, blob_world, key_of
from tests.support.s3.moto_server import served_moto

DATA = b"bytes of a blob " * 1_000

lives = pytest.mark.parametrize(
    ("guarantee", "kind"), [("recreatable", "bytes"), ("ha", "stream"), ("ha", "file")]
)


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    """Serve moto on a free port, with one bucket."""
    with served_moto("blobs") as url:
        yield url


@pytest.fixture(
    params=[
        "folder",
        "moto",
        pytest.param("s3-server", marks=[pytest.mark.requires("s3-server"), pytest.mark.integration]),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return an empty HA store of each kind."""
    if request.param == "folder":
        return LocalStore(tmp_path / "ha")
    url, key, secret = "s3://blobs", "test", "test"
    if request.param == "moto":
        endpoint = request.getfixturevalue("moto_url")
    else:
        url, endpoint, key, secret = (
            os.environ[f"LOCKGATE_TEST_S3_{name}"] for name in ("URL", "ENDPOINT", "KEY", "SECRET")
        )
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    settings = load_settings(s3_endpoint_url=endpoint, s3_region="us-east-1", s3_max_attempts=1)
    return open_store(f"{url}/{secrets.token_hex(8)}", settings)


@pytest.fixture
def world(tmp_path: Path, store: Store) -> Iterator[BlobWorld]:
    with blob_world(tmp_path, store=instrument(store)) as world:
        yield world


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[BlobWorld]:
    """Return a world over a local directory, for tests that do not depend on the store."""
    with blob_world(tmp_path, store=instrument(LocalStore(tmp_path / "ha"))) as world:
        yield world


def source(kind: str, root: Path, data: bytes = DATA) -> Source:
    """Return the same bytes as each kind of source."""
    if kind == "bytes":
        return data
    if kind == "stream":
        return (data[start : start + 700] for start in range(0, len(data), 700))
    file = root / "source"
    file.write_bytes(data)
    return file


@lives
def test_a_put_blob_is_returned_whole_and_deleted_when_no_reference_is_left(
    world: BlobWorld, guarantee: Guarantee, kind: str
) -> None:
    job_id = NO_JOB if kind == "stream" else "sales"
    blob = world.server.put(
        source(kind, world.root),
        job_id=job_id,
        guarantee=guarantee,
        use="library",
        name="lib.py",
        owners=["viewer:1"],
    )
    assert (blob.job_id, blob.size_bytes) == (job_id, len(DATA))
    assert digest_of(blob.blob_key) == hashlib.sha256(DATA).hexdigest()
    assert world.server.get(*key_of(blob)) == DATA
    assert (world.is_local(blob), world.is_in_ha(blob)) == (True, guarantee == "ha")
    (row,) = world.server.page(job_id)
    assert (row.guarantee, row.use, row.name, row.size_bytes) == (guarantee, "library", "lib.py", len(DATA))

    elsewhere = LocalBlobs(world.root / "elsewhere")
    assert world.server.fetch(elsewhere, *key_of(blob)).read_bytes() == DATA

    world.server.drop(*key_of(blob), "viewer:1")
    report = world.server.sweep(dry_run=False)
    assert report.deleted.blobs == 0
    world.clock.sleep(INTERVAL_S)
    report = world.server.sweep(dry_run=False)
    assert (report.deleted.blobs, report.deleted.size_bytes) == (1, len(DATA))
    assert everything(world) == []
    with pytest.raises(ObjectNotFoundError, match=str(blob.blob_key)):
        world.server.get(*key_of(blob))


@lives
def test_an_ended_job_leaves_nothing_whatever_references_its_blobs_have(
    world: BlobWorld, guarantee: Guarantee, kind: str
) -> None:
    upload_set = world.server.begin_set("sales")
    blob = world.server.put(
        source(kind, world.root), job_id="sales", guarantee=guarantee, upload_set=upload_set
    )
    world.server.complete_set(upload_set)
    world.clock.sleep(INTERVAL_S - 1)
    world.server.submit("sales", [blob.blob_key])
    world.server.refer(*key_of(blob), "viewer:1")
    world.clock.sleep(10 * INTERVAL_S)
    world.server.sweep(dry_run=False)
    assert world.server.get(*key_of(blob)) == DATA

    world.server.finish("sales")
    with pytest.raises(ObjectNotFoundError):
        world.server.get(*key_of(blob))
    sweep_twice(world)
    assert everything(world) == []


def test_a_blob_of_several_parts_is_returned_whole_and_leaves_no_upload(world: BlobWorld) -> None:
    data = os.urandom(2 * PART_BYTES + 12_345)
    blob = world.server.put(data, owners=["viewer:1"])
    world.server.stores.local.delete(*key_of(blob))
    assert world.server.get(*key_of(blob)) == data
    world.server.drop_owner("viewer:1")
    sweep_twice(world)
    assert everything(world) == []


def test_a_server_that_lost_its_disk_has_the_durable_blobs_and_not_the_recreatable_ones(
    world: BlobWorld,
) -> None:
    kept, lost = (
        world.server.put(DATA, job_id="sales", guarantee=guarantee, owners=["job"])
        for guarantee in ("ha", "recreatable")
    )
    world.server.stores.local.delete_all()
    world.restart()
    world.server.fail("sales")
    assert world.server.get(*key_of(kept)) == DATA
    assert (world.owners(kept), world.owners(lost)) == (["job"], [])
    with pytest.raises(ObjectNotFoundError, match="neither the local store nor the HA store has it"):
        world.server.get(*key_of(lost))
    sweep_twice(world)
    assert world.server.get(*key_of(kept)) == DATA
    assert world.row(lost) is None


def test_a_key_identifies_its_bytes_and_names_no_path_outside_the_store(plain: BlobWorld) -> None:
    blob = plain.server.put(DATA)
    assert decode_json(msgspec.json.encode(blob), BlobInfo) == blob
    assert check_blob_key(str(blob.blob_key)) == blob.blob_key
    for key in ("", "../" + blob.blob_key, blob.blob_key.upper(), blob.blob_key + "\n", blob.blob_key[:-1]):
        with pytest.raises(InvalidInputError, match="not a blob's key"):
            plain.server.get(NO_JOB, BlobKey(key))
    for job_id in ("", "..", "a/b", ".incoming", "a\0b"):
        with pytest.raises(InvalidInputError):
            plain.server.get(job_id, blob.blob_key)


def test_the_placeholder_no_job_cannot_be_submitted_or_ended(plain: BlobWorld) -> None:
    blob = plain.server.put(DATA, guarantee="recreatable", owners=["receiver:1"])
    with pytest.raises(InvalidInputError, match="is not a job"):
        plain.server.submit(NO_JOB, [blob.blob_key], destination="file:///lake", commit_job="etl-g1")
    for end in (plain.server.finish, plain.server.fail):
        with pytest.raises(InvalidInputError, match="is not a job"):
            end(NO_JOB)
    assert plain.server.get(*key_of(blob)) == DATA
    assert plain.owners(blob) == ["receiver:1"]
