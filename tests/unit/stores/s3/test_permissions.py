"""The policies of docker/iam allow each role what it calls, and nothing that no call of it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockgate.storage_core.commit.destination.manifest import read_live
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.commit.uploads.upload_owner import SweepAction
from lockgate.storage_core.errors import AccessDeniedError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints, take_checkpoint
from lockgate.storage_core.stores.s3.lifecycle import rule_problem
from tests.support.commit.crash_harness import die_at
from tests.support.commit.destination import World, plain, write
from tests.support.fake_s3.documents import deletions_of
from tests.support.fake_s3.operations import operation_of
from tests.support.fake_s3.refusal import Refusal
from tests.support.fake_s3.wire import Request
from tests.support.s3.destination import S3World, s3_world

POLICIES = Path(__file__).parents[4] / "docker" / "iam"
ACTIONS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "ListParts": "s3:ListMultipartUploadParts",
    "PutObject": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
"""What AWS asks for before it carries out an operation (Service Authorization Reference, Amazon S3)."""
DAY_S = 86_400.0


@dataclass
class Guard:
    """Refuses what a policy does not allow, as S3 does.

    Attributes:
        used: Pairs of a statement and an action that allowed a call.
        denied: Refused calls.
    """

    statements: list[dict[str, Any]]
    used: set[tuple[str, str]] = field(default_factory=set)
    denied: list[str] = field(default_factory=list)

    def __call__(self, request: Request) -> Refusal | None:
        operation = operation_of(request)
        keys = (
            [one["Key"] for one in deletions_of(request)[0]]
            if operation == "DeleteObjects"
            else [request.key]
        )
        denied = [key for key in keys if not self._allows(ACTIONS[operation], key)]
        if not denied:
            return None
        self.denied.append(f"{operation} {request.key}")
        return Refusal(403, "AccessDenied", "no identity-based policy allows it")

    def _allows(self, action: str, key: str) -> bool:
        resource = f"arn:aws:s3:::lake/{key}" if key else "arn:aws:s3:::lake"
        allowing = [
            one["Sid"]
            for one in self.statements
            if action in one["Action"] and fnmatchcase(resource, one["Resource"])
        ]
        self.used |= {(sid, action) for sid in allowing}
        return bool(allowing)


def policy(role: str) -> list[dict[str, Any]]:
    text = (POLICIES / f"{role}.json").read_text().replace("BUCKET", "lake").replace("PREFIX", "sales")
    document = json.loads(text)
    assert document["Version"] == "2012-10-17"
    assert {one["Effect"] for one in document["Statement"]} == {"Allow"}
    return list(document["Statement"])


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch) as world:
        yield world


def guarded(s3: S3World, role: str) -> Guard:
    s3.fake.lookalike = guard = Guard(policy(role))
    return guard


def whole_jobs(world: World) -> None:
    """Probe, write, replace, abort; recover a crashed job of each kind."""
    world.run("first", {"a.csv": b"1", "b.csv": b"2"})
    world.run("second", {"a.csv": b"3"}, mode="replace")
    with world.open_job("dropped") as job:
        write(job, "t", {"c.csv": b"4"})
        job.abort("by hand")
    crashed = world.open_job("crashed")
    write(crashed, "t", {"d.csv": b"5"})
    die_at("complete.complete.before", crashed.commit)
    FAILPOINTS.observer = None
    world.open_job("lost").close()
    world.recover()


def checkpoints_in(world: World) -> None:
    """Use the destination as the store of a journal's checkpoints."""
    with_journal = world.with_journal()
    settings = structs.replace(with_journal.settings, checkpoint_url=world.url)
    checkpoints = open_checkpoints(settings)
    with with_journal.journal.reading() as reading:
        taken, _ = take_checkpoint(reading, checkpoints)
    checkpoints.abort_uploads(0)
    checkpoints.delete(taken.stamp)


def leave_work_for_sweeps(s3: S3World) -> None:
    """Leave open uploads, folders of ended jobs, and replaced files that were kept for a while."""
    world = s3.driver
    whole_jobs(world)
    world.keep()
    world.run("retained", {"a.csv": b"6"}, mode="replace")
    with world.open_job("leaky") as leaky:
        write(leaky, "t", {"e.csv": b"1"})
        s3.fake.lookalike = no_abort
        leaky.abort("by hand")
    upload_id = world.store.begin_upload("stray.csv", new_token())
    world.store.put_part("stray.csv", upload_id, 1, 0, b"1")


def no_abort(request: Request) -> Refusal | None:
    return Refusal(403, "AccessDenied", "") if operation_of(request) == "AbortMultipartUpload" else None


def check_exact(guard: Guard) -> None:
    """Check that no call was denied, and that each action of each statement allowed one."""
    assert guard.denied == []
    assert guard.used == {(one["Sid"], action) for one in guard.statements for action in one["Action"]}


def test_a_writer_may_do_what_jobs_recovery_and_checkpoints_call(s3: S3World) -> None:
    guard = guarded(s3, "writer")
    whole_jobs(s3.driver)
    checkpoints_in(s3.driver)
    check_exact(guard)
    assert {"a.csv", "d.csv"} <= set(s3.driver.visible())


def test_a_sweeper_may_abort_and_delete_but_neither_read_nor_make_data(s3: S3World) -> None:
    world = s3.driver
    leave_work_for_sweeps(s3)
    guard = guarded(s3, "sweeper")
    for _ in range(2):
        world.clock.sleep(40 * DAY_S)
        report = sweep_uploads(
            world.url, dry_run=False, measure=SweepAction, settings=world.settings, clock=world.clock
        )
        assert {upload.size for upload in report.uploads} == {1}
    check_exact(guard)
    assert world.open_uploads() == []
    assert [plain(key) for key in sorted(world.keys())] == ["a.csv"]
    with pytest.raises(AccessDeniedError):
        world.store.put("b.csv", b"")


def test_a_reader_may_read_and_list_and_nothing_else(s3: S3World) -> None:
    whole_jobs(s3.driver)
    guard, world = guarded(s3, "reader"), s3.other
    manifest = read_live(world.url, lambda found: found, settings=world.settings)
    assert [world.store.get(key) for key in manifest.files] == [b"3", b"5"]
    assert {job.job_id for job in list_jobs(world.url, settings=world.settings)} > {"first-g1", "crashed-g1"}
    assert set(world.visible()) == {"a.csv", "d.csv"}
    check_exact(guard)
    for change in (lambda: world.store.put("x", b""), lambda: world.store.delete("_SUCCESS")):
        with pytest.raises(AccessDeniedError):
            change()


def test_the_lifecycle_rule_leaves_the_longest_job_its_uploads(s3: S3World) -> None:
    rules = json.loads((POLICIES / "lifecycle.json").read_text())["Rules"]
    assert rule_problem(rules, "sales/", longest_job_s=s3.driver.settings.longest_job_s) == ""
