"""Files of other programs whose names no job could write: `replace` removes them, `fail` counts them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, write
from tests.support.fake_s3 import Options
from tests.support.s3.destination import S3World, s3_world

NEW = {"new.csv": b"new"}
NAMES = {
    "not UTF-8": b"bad-\xff.csv",
    "in a folder that is not UTF-8": b"day=\xe9/a.csv",
    "not NFC": "e\u0301.csv".encode(),
    "backslash": b"a\\b.csv",
    "control character": b"a\nb.csv",
}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch) as found:
        yield found


def put(world: World, name: bytes) -> Path:
    path = Path(os.fsdecode(os.fsencode(world.url) + b"/" + name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"foreign")
    return path


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_replace_removes_a_foreign_file_whatever_its_name_and_whenever_it_came(
    world: World, name: bytes
) -> None:
    early = put(world, name)
    job = world.open_job("sales", mode="replace")
    write(job, "t", NEW)
    late = put(world, b"late/" + name)
    receipt = job.commit()
    assert receipt.removed_files == 2
    assert not early.exists()
    assert not late.parent.exists()
    assert world.visible() == NEW
    assert world.live() == world.keys()


def test_a_foreign_file_that_changed_after_the_plan_is_kept(world: World) -> None:
    path = put(world, NAMES["not UTF-8"])

    def change(point: str) -> None:
        if point == "decide.create.after":
            path.write_bytes(b"changed since")

    FAILPOINTS.observer = change
    try:
        world.run("sales", NEW, mode="replace")
    finally:
        FAILPOINTS.observer = None
    assert path.read_bytes() == b"changed since"


def test_fail_counts_a_foreign_file_whatever_its_name(world: World) -> None:
    job = world.open_job("sales", mode="fail")
    write(job, "t", NEW)
    put(world, NAMES["not UTF-8"])
    with pytest.raises(ConflictError, match=r"has data \(bad-\\udcff.csv\) and the mode is fail"):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert world.open_uploads() == []


def client_of(world: World) -> Any:
    """Return a client of another program."""
    config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    # boto3's default session may be older than the fake and would then open a socket.
    return boto3.Session("test", "test", region_name="us-east-1").client(
        "s3", endpoint_url=world.settings.s3_endpoint_url, config=config
    )


@pytest.fixture
def client(s3: S3World) -> Any:
    """Return a client of another program."""
    return client_of(s3.driver)


@pytest.mark.parametrize("name", ["e\u0301.csv", "a\\b.csv", "a\tb.csv"])
def test_replace_removes_a_foreign_object_whatever_its_name(s3: S3World, client: Any, name: str) -> None:
    client.put_object(Bucket="lake", Key=f"sales/{name}", Body=b"foreign")
    s3.driver.run("sales", NEW, mode="replace")
    assert s3.driver.visible() == NEW


@pytest.mark.parametrize("mode", ["fail", "replace"])
def test_folder_markers_are_no_data(s3: S3World, client: Any, mode: str) -> None:
    world = s3.driver
    for marker in ("sales/", "sales/day=1/", "sales/day=1/hour=2/"):
        client.put_object(Bucket="lake", Key=marker, Body=b"")
    receipt = world.run("sales", {"day=1/new.csv": b"new"}, mode=mode).receipt
    assert receipt is not None
    assert receipt.removed_files == 0
    assert world.visible() == {"day=1/new.csv": b"new"}
    client.put_object(Bucket="lake", Key="sales/day=2/", Body=b"not a marker")
    assert "day=2/" in set(world.keys())


UPLOADS = {
    "control character": "sales/a\x01b.csv",
    "noncharacter": "sales/a\uffffb.csv",
    "plus and percent": "sales/a+b%41 c.csv",
    "empty segment": "sales/a//b.csv",
}


def begin(client: Any, key: str) -> None:
    """Begin an upload as another program; boto3 cannot read an answer that repeats some of these names."""
    with suppress(ClientError):
        client.create_multipart_upload(Bucket="lake", Key=key)


def swept_twice(world: World) -> list[str]:
    """Sweep twice, a day and more apart; return the keys that are still open."""
    for _ in range(2):
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
        world.clock.jump(2 * 86_400.0)
    return world.open_uploads()


@pytest.mark.parametrize("sender", ["crt", "boto3"])
@pytest.mark.parametrize("key", UPLOADS.values(), ids=UPLOADS)
def test_a_foreign_upload_stops_no_job_and_no_sweep_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, sender: str
) -> None:
    with s3_world(tmp_path, monkeypatch, s3_client=sender) as found:
        world = found.driver
        begin(client_of(world), key)
        world.run("one", NEW)
        aborted = world.open_job("two")
        write(aborted, "t", NEW)
        aborted.abort("test")
        assert world.recover() == []
        assert world.open_uploads() == [key.removeprefix("sales/")]
        assert swept_twice(world) == (["a//b.csv"] if "//" in key else [])


@pytest.mark.parametrize("sender", ["crt", "boto3"])
def test_an_upload_whose_name_cannot_be_decoded_is_left_out_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sender: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = Options(encodes_uploads=False)
    with s3_world(tmp_path, monkeypatch, options, s3_client=sender) as found:
        world = found.driver
        for key in ("sales/a\x01b.csv", "sales/plain+%41.csv"):
            begin(client_of(world), key)
        with caplog.at_level(logging.WARNING, "lockgate.stores"):
            world.run("one", NEW)
            assert world.open_uploads() == ["plain+%41.csv"]
    assert "which cannot be decoded: it is left out" in caplog.text
