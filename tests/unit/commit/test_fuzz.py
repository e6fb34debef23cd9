"""Records changed by an attacker: no content of a record affects anything outside the destination."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockgate.storage_core.commit.destination import log
from lockgate.storage_core.commit.destination.manifest import read_manifest
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import Record, decode, encode
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask, StagedFile
from lockgate.storage_core.commit.records.layout import CHECKPOINT_HINT
from lockgate.storage_core.commit.recovery.recover import recover_all
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import InvalidInputError, LockgateError, MalformedRecordError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import TaskId, split_job_id
from lockgate.workers.task_commit import commit_staged_task
from tests.support.commit.destination import Crash, World, write
from tests.support.soak import IS_SOAK, rounds
from tests.support.strategies import JSON_VALUES, mutations, records, to_json

pytestmark = pytest.mark.slow

settings.register_profile(
    "fuzz",
    derandomize=not IS_SOAK,  # the same examples on every machine, so that a failure can be reproduced
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
FUZZ: Final = settings.get_profile("fuzz")
KINDS: Final = sorted(Record.__subclasses__(), key=lambda kind: kind.__name__)
CANARY: Final = b"bytes that no job but the victim may touch"
DAY: Final = 86_400.0


@settings(FUZZ, max_examples=rounds(6, 1_000))
@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_a_changed_record_is_read_unchanged_or_refused(kind: type[Record], data: st.DataObject) -> None:
    document = data.draw(records(kind))
    assert encode(decode(kind, to_json(document), "key"))
    hostile = data.draw(mutations(document, "/victim"))
    try:
        record = decode(kind, hostile, "key")
    except MalformedRecordError:
        return
    assert decode(kind, encode(record), "key") == record


@settings(FUZZ, max_examples=rounds(100, 10_000))
@given(st.sampled_from(KINDS), JSON_VALUES.map(to_json) | st.binary(max_size=60))
def test_no_other_json_is_accepted_as_a_record(kind: type[Record], data: bytes) -> None:
    with pytest.raises(MalformedRecordError, match=r"^key: not a readable"):
        decode(kind, data, "key")


@dataclass(frozen=True)
class Scene:
    """A destination in a certain state, next to a victim directory; copied for every example."""

    root: Path

    @property
    def world(self) -> World:
        return World(self.root, str(self.root / "dest"), options={"tombstone_s": 10 * DAY, "parallelism": 2})

    @property
    def victim(self) -> Path:
        return self.root / "victim"

    def copy_to(self, root: Path) -> Scene:
        """Copy with hard links, because the owner of an upload is identified by the file's inode."""
        shutil.copytree(self.root, root, copy_function=os.link, dirs_exist_ok=True)
        return Scene(root)

    def find(self, pattern: str) -> Path:
        """Return the newest record that matches."""
        found = sorted((self.root / "dest").glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        return found[-1]


def undecided(world: World) -> None:
    """Build a replacing job with two committed tasks, one rejected attempt and a dead driver."""
    job = world.open_job("sales", mode="replace", committer="staging")
    staging = Path(job.staging_dir, "stage")
    staging.mkdir(parents=True)
    (staging / "secret.csv").write_bytes(b"staged")
    task = ExpectedTask(task_id=TaskId("staged"), files=(StagedFile("secret.csv", 6),))
    job.expect([ExpectedTask(task_id=TaskId("t")), task], staging=str(staging))
    write(job, "t", {"day=1/new.csv": b"new"})
    job.abort_attempt("t", "0123456789abcdef")
    job.close()


def ready(world: World) -> None:
    """Build `undecided` with every task committed: recovery resumes the job."""
    with world.open_job("sales", mode="replace", on_lapse="resume", audit=True) as job:
        job.expect([ExpectedTask(task_id=TaskId("t"))])
        write(job, "t", {"day=1/new.csv": b"new"})
        job.record_audit(chosen=job.chosen_digest(), passed=True, suite="all", summary={"rows": 1})


def crashed(at: str, **options: object) -> Callable[[World], None]:
    """Return a builder of a replacing job whose driver died at a failpoint of its commit."""

    def build(world: World) -> None:
        def die(point: str) -> None:
            if point == at:
                raise Crash

        with world.open_job("sales", mode="replace", **options) as job:
            write(job, "t", {"day=1/new.csv": b"new"})
            FAILPOINTS.observer = die
            try:
                job.commit()
            except Crash:
                pass
            finally:
                FAILPOINTS.observer = None
            job.close()

    return build


def retaining(world: World) -> None:
    """Build a committed job whose replaced files are deleted by a later sweep."""
    world.keep()
    world.run("sales", {"day=1/new.csv": b"new"}, mode="replace")
    upload = world.store.begin_upload("no-job.csv", "0" * 32)  # type: ignore[arg-type]
    assert upload
    sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)


SCENES: Final[Mapping[str, Callable[[World], None]]] = {
    "undecided": undecided,
    "ready": ready,
    "decided": crashed("complete.complete.before"),
    "published": crashed("remove.delete.before"),
    "ended": crashed("clean-up.delete_many.before"),
    "retaining": retaining,
}

JOB: Final = "_lockgate/jobs/sales-g1"
RECORDS: Final[Mapping[str, tuple[str, str]]] = {
    "job.json": ("undecided", f"{JOB}/job.json"),
    "store.json": ("undecided", "_lockgate/store.json"),
    "short id": ("published", "_lockgate/ids/*"),
    "lease": ("undecided", f"{JOB}/lease.json"),
    "expected tasks": ("undecided", f"{JOB}/attempts/*.json"),
    "pending set": ("ready", f"{JOB}/tasks/*/*.pendingset"),
    "ruled-out attempt": ("undecided", f"{JOB}/tasks/*/*.aborted"),
    "audit": ("ready", f"{JOB}/audits/*.json"),
    "decision": ("decided", f"{JOB}/COMMIT_STARTED"),
    "plan head": ("decided", f"{JOB}/plan/*/plan.json"),
    "plan shard of additions": ("decided", f"{JOB}/plan/shards/*.json: plan-additions"),
    "plan shard of removals": ("published", f"{JOB}/plan/shards/*.json: plan-removals"),
    "turn claim": ("decided", "_lockgate/log/*.turn"),
    "outcome": ("published", "_lockgate/log/*.json"),
    "outcome of an earlier job": ("undecided", "_lockgate/log/00000001.json"),
    "live files": ("published", "_lockgate/shards/*.json: live-files"),
    "removed keys": ("published", "_lockgate/shards/*.json: removed-keys"),
    "checkpoint": ("undecided", "_lockgate/log/*.checkpoint"),
    "checkpoint hint": ("undecided", CHECKPOINT_HINT),
    "terminal marker": ("ended", f"{JOB}/COMMIT_SUCCESS"),
    "report": ("ended", f"{JOB}/report.json"),
    "summary": ("published", "_SUCCESS"),
    "sweep state": ("retaining", "_lockgate/sweep.json"),
}


@pytest.fixture(scope="module")
def scenes() -> Iterator[Callable[[str], Scene]]:
    """Build each scene once."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "CHECKPOINT_TURNS", 1)  # write a checkpoint after every turn
        built: dict[str, Scene] = {}

        def scene(name: str) -> Scene:
            if name not in built:
                built[name] = Scene(Path(folder, name))
                built[name].victim.mkdir(parents=True)
                (built[name].victim / "secret.csv").write_bytes(CANARY)
                (built[name].victim / "day=1").mkdir()
                world = built[name].world
                world.run("base", {"day=1/base.csv": b"base", "day=2/base.csv": b"base"})
                SCENES[name](world)
            return built[name]

        yield scene


@settings(FUZZ, max_examples=rounds(4, 200))
@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
def test_no_record_makes_anything_outside_the_destination_change(
    name: str, scenes: Callable[[str], Scene], data: st.DataObject
) -> None:
    moment, pattern = RECORDS[name]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        scene = scenes(moment).copy_to(Path(folder))
        record = record_at(scene, pattern)
        plant(
            scene.root / "dest",
            record,
            data.draw(mutations(json.loads(record.read_bytes()), str(scene.victim))),
        )
        patch.setenv("LOCKGATE_HOME", str(scene.root / "home"))
        patch.setattr(os, "fsync", lambda descriptor: None)  # durability is not tested here
        before = everything_but(scene.root, "dest", "home")
        drive(scene)
        assert everything_but(scene.root, "dest", "home") == before
        assert not any(CANARY in content for content in everything_but(scene.root, "victim").values())


def record_at(scene: Scene, pattern: str) -> Path:
    """Return the newest record that matches a glob, optionally followed by a colon and the record's type."""
    path, _, tag = pattern.partition(": ")
    found = sorted((scene.root / "dest").glob(path), key=lambda file: file.stat().st_mtime_ns)
    return next(file for file in reversed(found) if not tag or json.loads(file.read_bytes())["record"] == tag)


def plant(dest: Path, path: Path, data: bytes) -> None:
    """Replace a record. If it is named by its digest, update every reference to that name, too.

    An attacker would do the same; a digest that does not match is refused at once.
    """
    old = next((name for name in (path.stem, path.parent.name) if re.fullmatch("[0-9a-f]{64}", name)), None)
    path.unlink()  # the hard link is shared with other examples
    if old is None:
        path.write_bytes(data)
        return
    new = hashlib.sha256(data).hexdigest()
    renamed = Path(str(path).replace(old, new))
    renamed.parent.mkdir(exist_ok=True)
    renamed.write_bytes(data)
    for other in [found for found in dest.rglob("*") if found.is_file() and found != renamed]:
        content = other.read_bytes()
        if old.encode() in content:
            plant(dest, other, content.replace(old.encode(), new.encode()))


def drive(scene: Scene) -> None:
    """Perform every operation on a destination; each step runs even if the previous one failed."""
    world = scene.world

    def work() -> None:
        job = world.attach("sales-g1")
        expected = job.expected()
        for task in () if expected is None else expected.tasks:
            if task.files:
                commit_staged_task(world.url, "sales-g1", job.job_attempt, task.task_id)
        job.commit()

    def run_next_job() -> None:
        with world.open_job("next", mode="replace") as job:
            write(job, "t", {"day=3/next.csv": b"next"})
            job.commit()

    def recover() -> None:
        world.clock.sleep(2 * DAY)
        list(recover_all(world.url, settings=world.settings, clock=world.clock))

    def sweep() -> None:
        world.clock.sleep(2 * DAY)
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)

    def read() -> None:
        for key in read_manifest(world.url, settings=world.settings).files:
            assert Path(os.path.normpath(scene.root / "dest" / key)).is_relative_to(scene.root / "dest"), key

    for step in (read, work, run_next_job, recover, sweep, sweep, read):
        with suppress(LockgateError):
            step()


def everything_but(root: Path, *folders: str) -> dict[str, bytes]:
    """Return the content of all files and the folders below a root, except for some."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"a folder"
        for path in root.rglob("*")
        if path.relative_to(root).parts[0] not in folders
    }


# Defects that were found by this fuzz test and by review.


def change(world: World, key: str, **fields: object) -> None:
    world.store.put(key, json.dumps({**json.loads(world.store.get(key)), **fields}).encode())


def test_a_checkpoint_hint_behind_the_logs_end_does_not_make_the_log_look_empty(world: World) -> None:
    world.run("one", {"a.csv": b"1"})
    world.store.put(CHECKPOINT_HINT, b'{"record":"checkpoint-hint","turn":4000}')
    world.run("two", {"b.csv": b"2"})
    assert world.manifest().turn == 2
    assert world.live() == world.keys()


def test_a_checkpoint_that_names_a_file_outside_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_TURNS", 1)
    world.run("one", {"a.csv": b"1"})
    key = layout.checkpoint(1)
    shard = layout.log_shard(json.loads(world.store.get(key))["live"][0]["digest"])
    dest = Path(world.url)
    plant(dest, dest / shard, world.store.get(shard).replace(b'"a-', b'"../victim/a-'))
    with pytest.raises(MalformedRecordError, match=r"00000001.*could leave the destination"):
        world.manifest()


@pytest.mark.parametrize("key", [layout.checkpoint(1), layout.turn_outcome(1)])
def test_a_log_record_of_another_turn_is_refused(
    world: World, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_TURNS", 1)
    world.run("one", {"a.csv": b"1"})
    if key == layout.turn_outcome(1):
        world.store.delete(layout.checkpoint(1))
    change(world, key, turn=7)
    with pytest.raises(MalformedRecordError, match=rf"{key}: field turn is 7"):
        world.manifest()


@pytest.mark.parametrize(
    ("field", "value"), [("job_id", "other-g1"), ("job_attempt", "../../victim"), ("job_id", "../x-g1")]
)
def test_a_lease_of_another_job_or_with_an_escaping_id_is_refused(
    world: World, field: str, value: str
) -> None:
    job = world.open_job("sales")
    job.close()
    key = job._folder.key("lease.json")
    change(world, key, **{field: value})
    with pytest.raises(MalformedRecordError, match=rf"{key}.*{field}"):
        world.attach("sales-g1").commit()


def test_a_job_id_whose_generation_overflows_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="is not a job id"):
        split_job_id(f"sales-g{'9' * 5000}")
