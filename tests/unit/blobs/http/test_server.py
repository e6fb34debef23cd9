"""A blob server over HTTP gives the same guarantees as one in the same process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from lockgate.storage_core.blobs.http.client import BlobClient
from lockgate.storage_core.blobs.registry.upload_sets import AbandonUpload
from lockgate.storage_core.blobs.server.open_upload_sets import HARD_S
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.errors import (
    ConflictError,
    CorruptBlobError,
    FencedError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from tests.support.blobs.http_server import client_of, served
from tests.support.blobs.server import BlobWorld, damage, key_of

MIB = 1024 * 1024


@pytest.fixture
def url(world: BlobWorld) -> Iterator[str]:
    with served(world.server) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[BlobClient]:
    with client_of(url) as client:
        yield client


def is_empty(world: BlobWorld) -> bool:
    """Return whether the server has kept nothing, not even a temporary file."""
    incoming = world.server.stores.local.path / ".incoming"
    under_way = list(incoming.iterdir()) if incoming.exists() else []
    local = [
        found
        for job_id in world.server.stores.local.jobs()
        for found in world.server.stores.local.blobs(job_id)
    ]
    assert world.server.stores.ha is not None
    return not (under_way or local or list(world.server.stores.ha.blobs()))


@pytest.mark.parametrize("size", [0, 3 * MIB + 7], ids=["empty", "pieces"])
def test_bytes_files_and_streams_are_returned_unchanged(
    client: BlobClient, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    pieces = [data[: size // 3], b"", data[size // 3 :]]
    for source in (data, tmp_path / "file", pieces, iter(pieces)):
        blob = client.put(source, job_id="sales", name="a name & more")
        assert blob.size_bytes == size
        assert blob.blob_key.startswith(hashlib.sha256(data).hexdigest())
        assert client.get(*key_of(blob)) == data
        fetched = client.fetch(LocalBlobs(tmp_path / "cache"), *key_of(blob))
        assert fetched.read_bytes() == data


def test_the_properties_of_a_blob_are_transmitted(client: BlobClient, world: BlobWorld) -> None:
    blob = client.put(
        b"message",
        job_id="sales",
        guarantee="recreatable",
        use="message",
        name="größe & co.bin",
        owners=["receiver:1", "receiver:2/a b"],
        lapse_s=60.0,
    )
    (row,) = client.page("sales")
    assert row == world.row(blob)
    assert (row.name, row.use, row.guarantee) == ("größe & co.bin", "message", "recreatable")
    references = client.references(job_id="sales", blob_key=blob.blob_key)
    assert [one.owner for one in references] == ["receiver:1", "receiver:2/a b"]
    assert {one.until_s for one in references} == {world.clock.now_s() + 60.0}


def test_a_thousand_owners_fit_one_request_and_too_many_are_refused_with_a_message(
    client: BlobClient, world: BlobWorld
) -> None:
    owners = [f"receiver:consumer-number-{number:06}" for number in range(2_000)]
    blob = client.put(b"bytes", job_id="sales", owners=owners[:1_000])
    assert sorted(world.owners(blob)) == owners[:1_000]
    with pytest.raises(InvalidInputError, match=r"its 2000 owners take .* nothing was sent") as refused:
        client.put(b"bytes", job_id="stock", owners=owners)
    assert len(str(refused.value)) < 400
    assert list(world.server.page("stock")) == []


def test_a_job_lives_and_ends_over_http(client: BlobClient, world: BlobWorld) -> None:
    upload_set = client.begin_set("sales")
    library = client.put(b"a", job_id="sales", upload_set=upload_set)
    message = client.put(b"b", job_id="sales", guarantee="recreatable", owners=["job"])
    assert client.complete_set(upload_set) == 1
    client.submit("sales", [library.blob_key], destination="file:///lake", commit_job="sales-g1")
    assert world.owners(library) == ["job"]
    client.refer(*key_of(library), "receiver:1", lapse_s=5.0)
    client.drop(*key_of(library), "receiver:1")
    client.fail("sales")
    assert (world.owners(library), world.owners(message)) == (["job"], [])
    client.refer(*key_of(message), "viewer:1")
    assert client.drop_owner("viewer:1") == 1
    client.finish("sales")
    assert is_empty(world)
    with pytest.raises(FencedError, match="has ended"):
        client.put(b"late", job_id="sales")
    assert is_empty(world)


def test_errors_keep_their_type_over_http(client: BlobClient) -> None:
    blob = client.put(b"a", job_id="sales")
    with pytest.raises(ObjectNotFoundError, match="never put"):
        client.get("other", blob.blob_key)
    with pytest.raises(ObjectNotFoundError, match="upload it again"):
        client.refer("other", blob.blob_key, "viewer:1")
    with pytest.raises(CorruptBlobError, match="send them again"):
        client.put(b"a", job_id="sales", digest="0" * 64)
    with pytest.raises(InvalidInputError, match=r"query\.use"):
        client.put(b"a", job_id="sales", use="retired")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="not usable as a name"):
        client.put(b"a", job_id="../sales")
    client.put(b"a", job_id="sales", request_id="r1")
    with pytest.raises(ConflictError, match="with other bytes"):
        client.put(b"b", job_id="sales", request_id="r1")


def test_ranges_are_served_as_http_specifies(client: BlobClient, url: str) -> None:
    data = bytes(range(256))
    blob = client.put(data, job_id="sales")
    path = f"{url}/jobs/sales/blobs/{blob.blob_key}"

    def get(verb: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return urllib3.request(verb, path, headers=named, retries=False)

    whole = get()
    assert (whole.status, whole.data, whole.headers["etag"]) == (200, data, f'"{blob.blob_key}"')
    some = get(Range="bytes=10-19", If_Range=f'"{blob.blob_key}"')
    assert (some.status, some.data, some.headers["content-range"]) == (206, data[10:20], "bytes 10-19/256")
    assert get(Range="bytes=250-").data == data[250:]
    assert get(Range="bytes=250-9999").data == data[250:]
    assert get(Range="bytes=-6").data == data[250:]
    assert get(Range="bytes=10-19", If_Range='"another"').data == data
    beyond = get(Range="bytes=256-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, "bytes */256")
    head = get("HEAD", Range="bytes=10-19")
    assert (head.status, head.data, head.headers["content-length"]) == (206, b"", "10")


def test_the_set_of_a_dead_client_lapses_and_a_live_client_renews_its_set(
    client: BlobClient, world: BlobWorld
) -> None:
    upload_set = client.begin_set("sales")
    world.clock.now += HARD_S - 1
    client._renewer.renew()
    world.clock.now += HARD_S - 1
    with pytest.raises(ConflictError, match="lives"):
        world.journal.apply(AbandonUpload(upload_set=upload_set))
    world.clock.now += 1
    world.journal.apply(AbandonUpload(upload_set=upload_set))
    with pytest.raises(FencedError, match="given up"):
        client.put(b"late", job_id="sales", upload_set=upload_set)
    assert is_empty(world)


def test_a_body_that_is_too_large_is_refused_and_not_kept(world: BlobWorld, tmp_path: Path) -> None:
    with served(world.server, max_bytes=MIB) as url, client_of(url) as client:
        assert client.put(b"x" * MIB).size_bytes == MIB
        for source in (b"x" * (MIB + 1), iter([b"x" * MIB] * 64)):
            with pytest.raises(InvalidInputError, match="LOCKGATE_BLOB_MAX_BYTES"):
                client.put(source, job_id="large")
    assert list(world.server.stores.local.jobs()) == ["no_job"]


def test_a_failing_source_leaves_nothing_and_its_error_is_raised(
    client: BlobClient, world: BlobWorld
) -> None:
    def source() -> Iterator[bytes]:
        yield b"half" * MIB
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        client.put(source())
    assert client.get(*key_of(client.put(b"after"))) == b"after"


def test_an_unreachable_server_is_reported_after_some_retries(tmp_path: Path) -> None:
    with client_of("http://127.0.0.1:1") as client:
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            client.put(b"a")
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            client.get("sales", "0" * 64 + "-" + "0" * 32)  # type: ignore[arg-type]


def test_a_sweep_and_a_verification_can_be_requested_over_http(client: BlobClient, world: BlobWorld) -> None:
    kept = client.put(b"kept", job_id="sales", owners=["job"])
    client.put(b"garbage", job_id="sales")
    world.clock.now += 2 * 1_800.0
    assert client.sweep(dry_run=True).deleted.blobs == 1
    assert client.sweep(dry_run=False).deleted.blobs == 1
    assert [row.blob_key for row in client.page()] == [kept.blob_key]
    damage(world.server.stores.local.path_of(*key_of(kept)))
    (finding,) = client.verify("sales", deep=True).findings
    assert finding.blob_key == kept.blob_key


def test_health_and_metrics_are_served(client: BlobClient, url: str) -> None:
    client.get(*key_of(client.put(b"some bytes", job_id="sales")))
    with pytest.raises(ObjectNotFoundError):
        client.get("other", client.page("sales")[0].blob_key)
    assert urllib3.request("GET", f"{url}/health").json() == {"status": "ok"}
    figures = urllib3.request("GET", f"{url}/metrics").data.decode()
    for line in (
        'lockgate_blobs_requests_total{outcome="ok",verb="put"} 1.0',
        'lockgate_blobs_requests_total{outcome="ok",verb="get"} 1.0',
        'lockgate_blobs_requests_total{outcome="refused",verb="get"} 1.0',
        'lockgate_blobs_bytes_total{direction="in",verb="put"} 10.0',
        'lockgate_blobs_request_seconds_count{outcome="ok",verb="get"} 1.0',
        "lockgate_journal_entries_total",
    ):
        assert line in figures


def test_a_reference_that_would_lapse_immediately_is_refused(client: BlobClient, world: BlobWorld) -> None:
    blob = client.put(b"a", job_id="sales", owners=["viewer:1"])
    with pytest.raises(InvalidInputError, match="lapse_s"):
        client.refer(*key_of(blob), "viewer:2", lapse_s=-1.0)
    with pytest.raises(InvalidInputError, match="lapse_s"):
        client.put(b"a", job_id="sales", owners=["viewer:2"], lapse_s=-1.0)
    assert world.owners(blob) == ["viewer:1"]
    assert [one.blob_key for one in client.page("sales")] == [blob.blob_key]


def test_a_retried_drop_of_an_owner_removes_no_reference_taken_since(
    world: BlobWorld, client: BlobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client.put(b"before", owners=["xcom:1"])
    since = client.put(b"since")
    drop_owner = world.server.drop_owner

    def drop_and_lose_the_answer(owner: str, **options: float) -> int:
        monkeypatch.undo()
        drop_owner(owner, **options)
        world.clock.sleep(1.0)
        world.server.refer(*key_of(since), owner)
        raise OutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(world.server, "drop_owner", drop_and_lose_the_answer)
    client.drop_owner("xcom:1")
    assert (world.owners(before), world.owners(since)) == ([], ["xcom:1"])


def test_an_owner_is_dropped_although_the_clock_was_set_back_since_its_reference_was_taken(
    world: BlobWorld, client: BlobClient
) -> None:
    blob = client.put(b"before", owners=["xcom:1"])
    world.clock.sleep(-3_600.0)
    assert client.drop_owner("xcom:1") == 1
    assert world.owners(blob) == []
    assert client.drop_owner("xcom:1") == 0
