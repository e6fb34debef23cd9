"""Every malformed record of the protocol raises one clear error that names the file and the field.

A malformed record makes nothing visible, and no job is aborted because of another job's record.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    InvalidInputError,
    LockgateError,
    MalformedLogError,
    MalformedRecordError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, write
from tests.support.commit.malformed_records import LOG, NEW, RECORDS, Change, Stage, inside

REQUIRED = {
    "pending set": "attempt_id",
    "expected tasks": "stamp",
    "job.json": "token",
    "plan": "chosen_digest",
    "plan shard": "files",
    "removal shard": "files",
    "COMMIT_STARTED": "verdict",
    "COMMIT_SUCCESS": "ended",
    "COMMIT_FAIL": "ended",
    "turn": "token",
    "outcome": "verdict",
}
"""A required field of each record."""

ANY_RECORD: dict[str, tuple[Change, str]] = {
    "another version": (lambda d: d.update(version=2), "field version is 2"),
    "another record type": (lambda d: d.update(record="sonnet"), r"\$\.record"),
    "an unknown field": (lambda d: d.update(colour="red"), "colour"),
}

NEGATIVE: dict[str, tuple[Change, str]] = {
    "pending set": (lambda d: inside(d, "files", 0, "upload", "parts", 0).update(size=-1), "field size"),
    "expected tasks": (lambda d: inside(d, "tasks", 0, "files", 0).update(size=-1), r"files.*size"),
    "job.json": (lambda d: d.update(generation=-1), "generation"),
    "plan": (lambda d: inside(d, "additions", 0).update(size=-1), r"additions.*size"),
    "plan shard": (lambda d: inside(d, "files", 0).update(rows=-1), r"files.*rows"),
    "removal shard": (lambda d: inside(d, "files", 0).update(size=-1), r"files.*size"),
    "COMMIT_STARTED": (lambda d: inside(d, "stamp").update(epoch=-1), r"stamp\.epoch"),
    "turn": (lambda d: inside(d, "stamp").update(sequence=-1), r"stamp\.sequence"),
    "outcome": (lambda d: inside(d, "added", 0).update(files=-1), r"added.*files"),
}


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Stage]:
    """Return a function that copies a stage. Each stage is built only once to save time."""
    made: dict[str, Stage] = {}

    def copy(name: str, root: Path) -> Stage:
        if name not in made:
            first = tmp_path_factory.mktemp("stage")
            made[name] = RECORDS[name](World(first, str(first / "dest")))
        stage = made[name]
        shutil.copytree(stage.world.url, root / "dest", copy_function=shutil.copy2)
        world = World(root, str(root / "dest"), stage.world.clock)
        return Stage(world, stage.key, world.attach(stage.job.job_id), stage.visible)

    return copy


def refused(stage: Stage, key: str, word: str) -> None:
    with pytest.raises(MalformedRecordError, match=word) as raised:
        stage.read()
    assert key in str(raised.value)
    assert stage.world.visible() == stage.visible


def changed(stage: Stage, change: Change) -> bytes:
    document = json.loads(stage.world.store.get(stage.key))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize("fault", [*ANY_RECORD, "a field is missing", "a field of another type"])
@pytest.mark.parametrize("record", RECORDS)
def test_a_malformed_record_is_one_error_that_names_file_and_field(
    record: str, fault: str, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage, required = staged(record, tmp_path), REQUIRED[record]
    if fault == "a field is missing":
        change, word = (lambda d: d.pop(required)), required
    elif fault == "a field of another type":
        change, word = (lambda d: d.update({required: 0.5})), required
    else:
        change, word = ANY_RECORD[fault]
    refused(stage, stage.tamper(changed(stage, change)), word)


@pytest.mark.parametrize("record", NEGATIVE)
def test_a_negative_length_is_refused_by_its_field(
    record: str, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage, (change, word) = staged(record, tmp_path), NEGATIVE[record]
    refused(stage, stage.tamper(changed(stage, change)), word)


@pytest.mark.parametrize(
    "record", [name for name in RECORDS if name not in {"plan shard", "removal shard", "turn"}]
)
def test_a_record_of_another_job_is_refused_by_its_field(
    record: str, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    if record == "outcome":
        stage = RECORDS["COMMIT_SUCCESS"](World(tmp_path, str(tmp_path / "dest")))
        stage.key = "_lockgate/log/00000002.json"
    else:
        stage = staged(record, tmp_path)
    refused(stage, stage.tamper(changed(stage, lambda d: d.update(job_id="other-g1"))), "job_id")


@pytest.mark.parametrize("cut", ["in the middle", "before the last byte", "to nothing"])
@pytest.mark.parametrize("record", RECORDS)
def test_a_truncated_record_is_refused_by_name(
    record: str, cut: str, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage = staged(record, tmp_path)
    data = stage.world.store.get(stage.key).rstrip()
    kept = {"in the middle": len(data) // 2, "before the last byte": len(data) - 1, "to nothing": 0}[cut]
    refused(stage, stage.tamper(data[:kept]), "truncated")


@pytest.mark.parametrize("record", ["pending set", "COMMIT_STARTED", "turn"])
@pytest.mark.parametrize(
    "size", [50_000_000, MAX_RECORD_BYTES + 2], ids=["50 MB", "more than a record may have"]
)
def test_megabytes_of_garbage_are_refused_by_name(
    record: str, size: int, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage = staged(record, tmp_path)
    with (tmp_path / "dest" / stage.key).open("wb") as garbage:
        garbage.truncate(size)  # a sparse file of zeros
    refused(stage, stage.key, "not a readable" if size < MAX_RECORD_BYTES else "more than a record may have")


@pytest.mark.parametrize("record", ["plan", "plan shard", "removal shard"])
def test_a_plan_whose_bytes_do_not_match_its_name_is_refused(
    record: str, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage = staged(record, tmp_path)
    stage.world.store.put(stage.key, stage.world.store.get(stage.key).replace(b"version", b"Version"))
    refused(stage, stage.key, "another digest")


# Inconsistencies of pending sets.


def first(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["files"][0]
    return found


def swap_parts(document: dict[str, Any]) -> None:
    upload = first(document)["upload"]
    part = upload["parts"][0]
    upload["parts"] = [{**part, "number": 2, "size": 0}, part]


OF_PENDING_SETS: dict[str, tuple[Change, str]] = {
    "a duplicate destination": (lambda d: d["files"].append(first(d)), "two tasks write a-"),
    "a key outside the destination": (lambda d: first(d)["upload"].update(key="../a.csv"), "'../a.csv'"),
    "a key of the destination's log": (
        lambda d: first(d)["upload"].update(key="_lockgate/log/x"),
        "field key",
    ),
    "an absolute key": (lambda d: first(d)["upload"].update(key="/a.csv"), "'/a.csv'"),
    "a path outside the destination": (lambda d: first(d).update(path="../../a.csv"), r"'\.\./\.\./a\.csv'"),
    "reordered parts": (swap_parts, "field parts"),
    "a part twice": (
        lambda d: first(d)["upload"]["parts"].append(first(d)["upload"]["parts"][0]),
        "numbered",
    ),
    "no parts": (lambda d: first(d)["upload"].update(parts=[]), "numbered"),
    "parts that cancel out": (
        lambda d: first(d)["upload"].update(
            parts=[{**first(d)["upload"]["parts"][0], "number": n, "size": s} for n, s in ((1, 2), (2, -1))]
        ),
        "field size",
    ),
}


@pytest.mark.parametrize("fault", OF_PENDING_SETS)
def test_an_inconsistent_pending_set_is_refused_and_its_job_aborted(
    fault: str, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage, (change, word) = staged("pending set", tmp_path), OF_PENDING_SETS[fault]
    stage.tamper(changed(stage, change))
    with pytest.raises((MalformedRecordError, InvalidInputError), match=word) as raised:
        stage.read()
    assert stage.key in str(raised.value)
    assert stage.job.phase() is JobPhase.FAILED
    assert stage.world.visible() == stage.visible
    assert stage.world.open_uploads() == []


def test_a_pending_set_with_another_jobs_upload_is_refused_and_that_upload_is_kept(world: World) -> None:
    theirs, mine = world.open_job("theirs"), world.open_job("mine")
    for job in (theirs, mine):
        write(job, "t", {"a.csv": job.job_id.encode()})
    (wanted,) = next(theirs.pending_sets()).files
    found = next(mine.pending_sets())
    key = mine._folder.pending_set_key(found.task_id, found.attempt_id)
    document = json.loads(world.store.get(key))
    first(document)["upload"]["upload_id"] = wanted.upload.upload_id
    world.store.put(key, json.dumps(document).encode())
    with pytest.raises(LockgateError, match="1 of its 1 pending uploads are gone"):
        mine.commit()
    assert mine.phase() is JobPhase.FAILED
    theirs.commit()
    assert world.visible() == {"a.csv": b"theirs-g1"}


# Records that are shared by jobs.


@pytest.mark.parametrize("record", LOG)
def test_an_unreadable_log_aborts_no_job_and_every_job_continues_once_it_is_repaired(
    record: str, world: World
) -> None:
    stage = RECORDS[record](world)
    whole = stage.world.store.get(stage.key)
    stage.world.store.put(stage.key, whole[:-5])

    def run() -> None:
        with stage.world.attach(stage.job.job_id) as job:
            job.take_lease()
            job.commit()

    with pytest.raises(MalformedLogError, match="no job commits here until that record is restored"):
        run()
    assert stage.job.phase() is JobPhase.OPEN
    assert len(stage.world.open_uploads()) == len(NEW)
    stage.world.store.put(stage.key, whole)
    stage.read()
    assert stage.world.visible() == {**stage.visible, **NEW}


def test_no_manifest_is_read_from_an_unreadable_log(
    staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage = staged("outcome", tmp_path)
    stage.tamper(b"{")
    with pytest.raises(MalformedLogError, match=r"00000001\.json"):
        stage.world.manifest()


@pytest.mark.parametrize(
    "record", [name for name in RECORDS if name.startswith("COMMIT") or name == "job.json"]
)
def test_recovery_changes_nothing_because_of_an_unreadable_marker(
    record: str, staged: Callable[[str, Path], Stage], tmp_path: Path
) -> None:
    stage = staged(record, tmp_path)
    stage.tamper(b'{"record":')
    look = partial(
        lambda world: {i.key: i.version for page in world.store.pages() for i in page}, stage.world
    )
    before = look()
    (found,) = [found for found in stage.world.recover() if found.job_id == stage.job.job_id]
    assert found.needs_an_operator
    assert Path(stage.key).name in found.detail
    assert look() == before


def test_a_store_that_takes_no_part_is_refused_by_its_record(tmp_path: Path) -> None:
    world = World(tmp_path, str(tmp_path / "dest"))
    world.open_job("before")
    record = tmp_path / "dest/_lockgate/store.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, "capabilities": {**known["capabilities"], "max_parts": 0}}))
    with pytest.raises(MalformedRecordError, match=r"store\.json.*max_parts"):
        world.open_job("after")
