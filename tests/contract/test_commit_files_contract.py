"""Files of every size and name, and their options at opening, committed by a job on every store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from lockgate.storage_core.commit.destination.as_of import manifest_as_of
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import MIB
from lockgate.storage_core.stores import Store
from tests.support.commit.destination import World, plain, write

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import HeadObjectOutputTypeDef

PART = 5 * MIB
SIZES = {"empty": 0, "one": 1, "less": PART - 1, "part": PART, "more": PART + 1}
NAMES = [
    "a b/c  d.csv",
    "día=1/naïve-Ω-数据.csv",
    "percent%/100%25.csv",
    "a%2Fb.csv",
    "day=2026-11-21/hour=07/x=y=z",
    f"{'very' * 40}/{'long' * 40}/{'l' * 200}.csv",
]


@pytest.fixture
def world(
    kind: str,
    open_at: Callable[[str], Store],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """Return an empty destination in the kind of store under test."""
    if kind in {"moto", "fake-s3"}:
        endpoint = request.getfixturevalue(f"{kind.removesuffix('-s3')}_endpoint")
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", endpoint)
    elif kind == "s3-server":
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
    return World(tmp_path, open_at("dataset").url)


@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_files_around_the_size_of_a_part_are_committed_whole(world: World, committer: str) -> None:
    files = {f"{name}.bin": bytes([number]) * size for number, (name, size) in enumerate(SIZES.items(), 1)}
    with world.open_job("sales", committer=committer) as job:
        write(job, "t", files)
        parts = {file.path: len(file.upload.parts) for file in next(job.pending_sets()).files}
        # A staged file on the destination's file system is linked, not copied in parts.
        may_be_linked = committer == "staging" and world.url.startswith("file:")
        assert parts.pop("more.bin") in ({1, 2} if may_be_linked else {2})
        assert set(parts.values()) == {1}
        assert world.visible() == {}
        job.commit()
    assert world.visible() == files
    assert world.live() == world.keys()


@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_names_are_committed_unchanged(world: World, committer: str) -> None:
    files = {name: name.encode() for name in NAMES}
    with world.open_job("sales", committer=committer) as job:
        write(job, "t", files)
        job.commit()
    assert world.visible() == files
    assert world.live() == world.keys()


def test_replaced_files_are_kept_read_made_live_again_and_swept(world: World) -> None:
    files = {name: name.encode() for name in NAMES} | {"empty.bin": b"", "parts.bin": bytes(SIZES["more"])}
    world.keep(turns=1)
    world.run("old", files)
    world.run("new", {"new.bin": b"1"}, mode="replace")

    def as_of(turn: int) -> dict[str, bytes]:
        found = manifest_as_of(DestinationLog(world.store, 4), turn)
        return {plain(key): world.store.get(found.path(key)) for key in found.files}

    assert world.visible() == {"new.bin": b"1"}
    assert as_of(1) == files
    revert_to_turn(world.url, 1, settings=world.settings, clock=world.clock)
    assert world.visible() == files
    assert world.live() == world.keys()
    world.run("newest", {"newest.bin": b"2"}, mode="replace")
    for _ in range(2):
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
        world.clock.sleep(world.settings.orphan_age_s)
    assert as_of(3) == files
    with pytest.raises(InvalidInputError, match=r"files of turn 1 of .* are gone"):
        as_of(1)
    assert world.live() == world.keys()
    assert world.open_uploads() == []


def write_with_headers(job: Job, files: Mapping[str, bytes]) -> None:
    with job.attempt("t") as attempt:
        for name, data in files.items():
            with attempt.open(name, content_type="text/csv", metadata={"pipeline": "nightly run"}) as file:
                file.write(data)


def head(world: World, key: str) -> HeadObjectOutputTypeDef:
    """Return what S3 itself says of an object."""
    bucket, _, prefix = world.url.removeprefix("s3://").partition("/")
    # A separate session: the default one of boto3 keeps the credentials of the first store in a test.
    session = boto3.session.Session(region_name="us-east-1")
    client = session.client("s3", endpoint_url=os.environ["LOCKGATE_S3_ENDPOINT_URL"])
    found = client.head_object(Bucket=bucket, Key=f"{prefix}/{key}")
    client.close()
    return found


def test_files_that_are_kept_and_made_live_again_have_their_type_and_metadata(
    kind: str, world: World
) -> None:
    world.keep(turns=1)
    with world.open_job("old") as job:
        write_with_headers(job, {"a.csv": b"1", "empty.csv": b""})
        job.commit()
    world.run("new", {"new.bin": b"1"}, mode="replace")
    found = manifest_as_of(DestinationLog(world.store), 1)
    kept = [found.path(key) for key in found.files]
    revert_to_turn(world.url, 1, settings=world.settings, clock=world.clock)
    live = world.live()
    assert (len(kept), len(live), len({*kept, *live})) == (2, 2, 4)
    for key in [*kept, *live] if kind != "local" else ():  # a file system stores none of them
        headers = head(world, key)
        assert (headers["ContentType"], headers["Metadata"]["pipeline"]) == ("text/csv", "nightly run"), key


def test_a_directory_written_by_a_task_is_committed_with_all_its_files(world: World) -> None:
    # An index file is such an output: one name for a folder with data and index.
    index = {"part-0.map/data.bin": b"1", "part-0.map/index.bin": b"2", "part-0.map/deep/er/bloom.bin": b""}
    with world.open_job("sales") as job:
        write(job, "t0", index)
        write(job, "t1", {path.replace("part-0", "part-1"): data for path, data in index.items()})
        job.commit()
    assert len(world.visible()) == 6
    assert {path: world.visible()[path] for path in index} == index


def test_two_jobs_to_one_path_do_not_touch_each_others_uploads(world: World) -> None:
    first, second, third = (world.open_job(name) for name in ("first", "second", "third"))
    for job in (first, second, third):
        write(job, "t", {"a.csv": job.job_id.encode()})
    assert len(world.open_uploads()) == 3
    second.abort()
    assert len(world.open_uploads()) == 2
    first.commit()
    assert [short for short in world.open_uploads() if third.short_id in short] == world.open_uploads()
    third.commit()
    assert sorted(map(world.store.get, world.keys())) == [b"first-g1", b"third-g1"]
    assert world.open_uploads() == []


@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_storage_class_type_and_metadata_are_kept_until_the_commit(
    kind: str, world: World, committer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real server under test refuses a class that it does not offer, so it gets the default class.
    storage_class = "STANDARD" if kind == "s3-server" else "STANDARD_IA"
    world.options = {"s3_storage_class": storage_class}
    with world.open_job("sales", committer=committer) as job:
        write_with_headers(job, {"a.csv": b"1"})
        job.commit()
    (key,) = world.keys()
    if kind == "local":
        assert world.store.get(key) == b"1"  # a file system stores none of them, without an error
        return
    found = head(world, key)
    assert found["ContentType"] == "text/csv"
    assert found["Metadata"]["pipeline"] == "nightly run"
    assert found.get("StorageClass", "STANDARD") == storage_class
