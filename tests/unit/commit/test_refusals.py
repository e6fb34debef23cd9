"""Definite refusals of the store: each has an end, and none blocks the jobs that come after."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.destination import log
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.layout import CHECKPOINT_HINT, SUCCESS, turn_claim
from lockgate.storage_core.commit.records.log_records import TurnClaim
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.recovery.recover import recover_job
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import (
    AccessDeniedError,
    JobFailedError,
    LockgateError,
    NotAppliedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TurnBusyError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import new_token
from tests.support.cli import Run
from tests.support.commit.destination import World, plain, write
from tests.support.commit.refusals import OF_A_FILE, refused

FILES = {"a.csv": b"1", "long.csv": b"2"}
TOO_LONG = NotAppliedError("S3 answered KeyTooLong")
DENIED = AccessDeniedError("S3 answered AccessDenied")


def written(world: World, name: str = "sales") -> Job:
    job = world.open_job(name)
    write(job, "t", FILES)
    return job


def commits(world: World, name: str) -> bool:
    world.run(name, {f"{name}.csv": b"3"})
    return f"{name}.csv" in world.visible()


def test_a_file_whose_key_the_store_refuses_for_good_reverts_its_job_and_others_commit(world: World) -> None:
    job = written(world)
    with refused("long.csv", TOO_LONG, *OF_A_FILE):
        with pytest.raises(JobFailedError, match=r"reverted: 1 pending files were lost.*KeyTooLong"):
            job.commit()
        assert job.phase() is JobPhase.FAILED
        assert world.visible() == {}
        assert commits(world, "other")
    sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert world.open_uploads() == []


def test_a_read_back_that_only_the_credentials_refuse_loses_no_file(world: World) -> None:
    job = written(world)
    with (
        refused("long.csv", OutcomeUnknownError("no answer"), "complete_upload"),
        refused("long.csv", NotAppliedError("S3 answered 400"), "holds"),
        refused("long.csv", AccessDeniedError("S3 answered ExpiredToken"), "get"),
        pytest.raises(AccessDeniedError, match="ExpiredToken"),
    ):
        job.commit()
    assert job.phase() is JobPhase.DECIDED
    world.recover()
    assert world.visible() == FILES


@pytest.mark.parametrize(
    "error", [DENIED, UnsupportedStoreError("no hard links"), OutcomeUnknownError("500")]
)
def test_a_job_that_the_store_never_lets_complete_is_reverted_by_hand_and_others_commit(
    world: World, run: Run, error: LockgateError
) -> None:
    job = written(world)
    with refused("long.csv", error, "complete_upload"):
        with pytest.raises(type(error), match=r"lockgate jobs abort --revert \S+ sales-g1"):
            job.commit()
        with pytest.raises(TurnBusyError, match=r"lockgate jobs abort --revert \S+ sales-g1"):
            world.run("other", {"b.csv": b"3"})
        assert run("jobs", "abort", world.url, job.job_id).exit_code == 8
        assert run("jobs", "abort", "--revert", world.url, job.job_id).exit_code == 0
        assert job.phase() is JobPhase.FAILED
        assert world.visible() == {}
        assert commits(world, "later")
    assert [key for key in world.open_uploads() if plain(key) in FILES] == []


def test_a_revert_by_hand_whose_deletions_are_refused_is_repeated_when_they_are_allowed(
    world: World, run: Run
) -> None:
    job = written(world)
    with refused("long.csv", DENIED, "complete_upload"), refused("a.csv", DENIED, "delete"):
        with pytest.raises(AccessDeniedError):
            job.commit()
        assert run("jobs", "abort", "--revert", world.url, job.job_id).exit_code == 5
        assert job.phase() is JobPhase.REVERTING
        assert commits(world, "other")
    assert run("jobs", "abort", "--revert", world.url, job.job_id).exit_code == 0
    assert (job.phase(), set(world.visible())) == (JobPhase.FAILED, {"other.csv"})


def test_a_file_that_the_store_does_not_delete_keeps_its_job_from_the_end_of_its_revert(world: World) -> None:
    job = written(world)
    pending = next(job.pending_sets()).files[1]

    def lose(point: str) -> None:
        if point == "decide.create.after":
            world.store.abort_upload(pending.key, pending.upload.upload_id)
            FAILPOINTS.observer = None

    FAILPOINTS.observer = lose
    with refused("a.csv", NotAppliedError("S3 answered 409"), "delete"):
        with pytest.raises(NotAppliedError, match="409"):
            job.commit()
        assert job.phase() is JobPhase.REVERTING
        assert commits(world, "other")
    world.recover()
    assert (job.phase(), set(world.visible())) == (JobPhase.FAILED, {"other.csv"})


@pytest.mark.parametrize("name", ["00000001.turn", "COMMIT_STARTED", "a.csv"])
def test_a_file_that_another_program_has_open_aborts_no_job(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ends_s = written(world), world.clock.now + 20
    link = os.link

    def busy(source: str, to: str, **options: Any) -> None:
        if plain(str(to)) == name and world.clock.now < ends_s:
            world.clock.sleep(1)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        link(source, to, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", busy)
        with suppress(StoreUnavailableError, OutcomeUnknownError):
            job.commit()
    assert job.phase() is not JobPhase.FAILED
    world.attach(job.job_id).commit()
    assert world.visible() == FILES


def test_a_published_job_is_not_reverted_by_hand(world: World, run: Run) -> None:
    job = world.run("sales", FILES)
    found = run("jobs", "abort", "--revert", world.url, job.job_id)
    assert found.exit_code == 8
    assert world.visible() == FILES


@pytest.mark.parametrize("error", [None, OutcomeUnknownError("S3 answered 500")])
def test_a_folder_named_as_the_success_file_does_not_keep_a_published_job_from_its_end(
    world: World, error: LockgateError | None, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = Path(world.url) / SUCCESS / "part-0"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_bytes(b"theirs")
    with refused(SUCCESS if error else "nothing", error or TOO_LONG, "create", "put"):
        job = world.run("sales", FILES)
    assert job.phase() is JobPhase.COMMITTED
    assert f"job sales-g1 is published without {SUCCESS}" in caplog.text
    ended, _ = job._folder.ended()
    assert ended is not None
    assert ended.reason.startswith(f"published without {SUCCESS}: ")
    assert commits(world, "other")


def test_a_success_file_of_which_nothing_is_known_keeps_the_job_for_recovery(world: World) -> None:
    with refused(SUCCESS, OutcomeUnknownError("no answer"), "create"), pytest.raises(OutcomeUnknownError):
        written(world).commit()
    [recovered] = world.recover()
    assert (recovered.ended, recovered.receipt is not None) == (JobPhase.COMMITTED, True)
    assert world.store.head(SUCCESS)


def test_a_checkpoint_that_cannot_be_written_does_not_keep_a_published_job_from_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_TURNS", 1)
    with refused(CHECKPOINT_HINT, DENIED, "put"):
        job = world.run("sales", FILES)
    assert job.phase() is JobPhase.COMMITTED
    assert "has no checkpoint of turn 1" in caplog.text


def test_an_upload_that_the_store_does_not_abort_keeps_the_sweep_from_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    job = written(world)
    with refused("a.csv", TOO_LONG, "abort_upload"), refused("long.csv", TOO_LONG, "abort_upload"):
        job.abort()
    with refused("a.csv", TOO_LONG, "abort_upload"):
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert [plain(key) for key in world.open_uploads()] == ["a.csv"]
    assert "an open upload stays: S3 answered KeyTooLong" in caplog.text
    recover_job(world.url, job.job_id, settings=world.settings, clock=world.clock)
    assert world.open_uploads() == []


def test_a_record_that_a_full_store_never_confirms_is_an_error_with_the_stores_answer(world: World) -> None:
    job = world.open_job("sales")
    record = TurnClaim(job_id=job.job_id, token=new_token(), stamp=job._held_lease().stamp)
    full = OutcomeUnknownError("S3 answered InsufficientStorage")
    unsure = pytest.raises(OutcomeUnknownError, match=r"5 tries.*InsufficientStorage")
    with refused(plain(turn_claim(1)), full, "create"), unsure:
        claim(world.store, turn_claim(1), record)
    assert claim(world.store, turn_claim(1), record) == record
    job.close()
