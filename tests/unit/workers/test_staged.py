"""Tests of the task commit of staged files in one worker."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockgate import open_job
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask, StagedFile
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.staged_files import group_into_tasks, list_staged
from lockgate.storage_core.errors import (
    AuditFailedError,
    ConflictError,
    InvalidInputError,
    MalformedRecordError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.workers.task_commit import commit_staged_task
from tests.support.workers.celery_worker import StagedJob


@pytest.fixture
def audited(tmp_path: Path) -> StagedJob:
    return StagedJob(tmp_path, load_settings(), audit=True)


def commit_all(staged: StagedJob) -> list[dict[str, object]]:
    return [commit_staged_task(*staged.ids, task) for task in staged.task_ids]


def test_staged_files_become_pending_uploads_that_are_invisible_before_the_job_commit(
    staged: StagedJob,
) -> None:
    rows = commit_all(staged)

    assert [row["task_id"] for row in rows] == staged.task_ids
    assert [(row["files"], row["rows"]) for row in rows] == [(1, 10)] * 6
    assert len(staged.open_uploads()) == 6
    assert staged.listed() == []

    receipt = staged.attach().commit()

    assert (receipt.files, receipt.rows) == (6, 60)
    assert staged.visible_rows() == staged.all_rows
    assert staged.open_uploads() == []


def test_a_committed_task_is_not_committed_again(staged: StagedJob) -> None:
    first = commit_all(staged)

    assert commit_all(staged) == first
    assert staged.committed_attempts() == staged.task_ids
    assert len(staged.open_uploads()) == 6


def test_a_task_that_runs_twice_concurrently_is_visible_once(staged: StagedJob) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda task: commit_staged_task(*staged.ids, task), staged.task_ids * 3))

    staged.attach().commit()

    assert staged.visible_rows() == staged.all_rows
    assert len(staged.listed()) == 6
    assert staged.open_uploads() == []


def test_a_task_commit_neither_suspends_nor_aborts_nor_takes_over_the_job(staged: StagedJob) -> None:
    lease = staged.store.get(f"_lockgate/jobs/{staged.job.job_id}/lease.json")
    (staged.staging / "month=1" / "part-00000.parquet").unlink()

    with pytest.raises(InvalidInputError, match="staging directory must be one that workers see"):
        commit_all(staged)

    assert staged.attach().phase() is JobPhase.OPEN
    assert staged.store.get(f"_lockgate/jobs/{staged.job.job_id}/lease.json") == lease


def test_a_file_that_differs_from_the_frozen_listing_is_not_committed(staged: StagedJob) -> None:
    changed = staged.staging / "month=2" / "part-00001.parquet"
    changed.write_bytes((staged.staging / "month=2" / "part-00004.parquet").read_bytes() + b"PAR1")

    with pytest.raises((ConflictError, MalformedRecordError)):
        commit_all(staged)

    assert "month=2/part-00001" not in " ".join(staged.open_uploads())


def test_a_symbolic_link_out_of_the_staging_directory_is_not_followed(
    tmp_path: Path, staged: StagedJob
) -> None:
    folder = staged.staging / "month=1"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(InvalidInputError, match="leads out of its staging directory"):
        commit_staged_task(*staged.ids, staged.task_ids[0])
    assert staged.open_uploads() == []


def test_a_staging_directory_outside_the_staging_roots_is_not_read(
    staged: StagedJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "link").symlink_to(staged.staging)
    monkeypatch.setenv("LOCKGATE_STAGING_ROOTS", json.dumps([str(tmp_path / "shared")]))
    job = open_job(staged.destination, "linked", settings=staged.settings)
    job.expect(
        [ExpectedTask(task_id="staged-00000", files=())],  # type: ignore[arg-type]
        staging=str(tmp_path / "shared" / "link"),
    )
    job.suspend()

    for destination, job_id, job_attempt in (staged.ids, (job.destination, job.job_id, job.job_attempt)):
        with pytest.raises(InvalidInputError, match=r"in none of LOCKGATE_STAGING_ROOTS; nothing was read"):
            commit_staged_task(destination, job_id, job_attempt, "staged-00000")
    assert staged.open_uploads() == []


def test_a_path_that_leaves_the_staging_directory_is_refused(staged: StagedJob, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    job = open_job(staged.destination, "evil", settings=staged.settings)
    job.expect(
        [ExpectedTask(task_id="t", files=(StagedFile("../secret", 1),))],  # type: ignore[arg-type]
        staging=str(staged.staging),
    )
    job.suspend()

    with pytest.raises(InvalidInputError, match=r"segment '\.\.'"):
        commit_staged_task(staged.destination, job.job_id, job.job_attempt, "t")


def test_an_unexpected_task_of_the_job_attempt_is_refused(staged: StagedJob) -> None:
    with pytest.raises(InvalidInputError, match="expects no staged task 'staged-00099'"):
        commit_staged_task(*staged.ids, "staged-00099")


def test_nothing_is_committed_before_the_task_list_is_frozen(staged: StagedJob) -> None:
    destination, job_id, _ = staged.ids

    with pytest.raises(ConflictError, match="the job is open and has no list"):
        commit_staged_task(destination, job_id, "another-attempt", "staged-00000")


def test_a_message_after_the_end_of_the_job_leaves_nothing_behind(staged: StagedJob) -> None:
    staged.attach().abort()

    with pytest.raises(ConflictError, match="the job is failed and has no list"):
        commit_staged_task(*staged.ids, staged.task_ids[0])
    assert staged.open_uploads() == []


def _on_another_file_system(*_: object) -> None:
    raise UnsupportedStoreError("another file system")


@pytest.mark.parametrize("verb", ["adopt", "seal"])
def test_a_refusal_of_the_store_leaves_no_upload_and_a_retry_succeeds(
    staged: StagedJob, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verb != "adopt":
        monkeypatch.setattr(LocalStore, "adopt_file", _on_another_file_system)
    FAILPOINTS.arm({f"task-write.{verb}.before": "refuse"})
    with pytest.raises(StoreUnavailableError):
        commit_staged_task(*staged.ids, staged.task_ids[0])
    FAILPOINTS.arm({})
    assert staged.open_uploads() == []

    assert commit_staged_task(*staged.ids, staged.task_ids[0])["rows"] == 10


def test_an_audit_refuses_a_staged_file_whose_bytes_are_not_those_that_were_uploaded(
    audited: StagedJob,
) -> None:
    commit_all(audited)
    from lockgate.operators.audits.staged_rows import staged_rows

    rows = staged_rows(audited.job)
    rows.check_read(audited.job)
    file = audited.staging / "month=1" / "part-00000.parquet"
    file.write_bytes(file.read_bytes()[::-1])

    with pytest.raises(AuditFailedError, match="does not have the bytes that the workers uploaded"):
        rows.check_read(audited.job)


def test_an_audit_refuses_a_staged_file_that_changed_and_changed_back(audited: StagedJob) -> None:
    commit_all(audited)
    from lockgate.operators.audits.staged_rows import staged_rows

    rows = staged_rows(audited.job)
    file = audited.staging / "month=1" / "part-00000.parquet"
    before = file.read_bytes()
    file.write_bytes(before[::-1])
    file.write_bytes(before)

    with pytest.raises(ConflictError, match="changed while the audit read it"):
        rows.check_read(audited.job)


@pytest.mark.parametrize("audit", [False, True])
def test_a_staged_file_that_is_taken_without_a_copy_has_a_checksum_if_the_job_is_audited(
    tmp_path: Path, audit: bool
) -> None:
    (tmp_path / "a.csv").write_bytes(b"1,2\n")
    job = open_job(str(tmp_path / "lake"), "sales", committer="file-v1", audit=audit)
    with job.attempt("t") as attempt:
        attempt.add_file(tmp_path / "a.csv", "a.csv")
    (pending,) = job.pending_sets()
    job.abort()

    assert pending.files[0].sha256 == (hashlib.sha256(b"1,2\n").hexdigest() if audit else None)


def test_a_task_of_an_earlier_driver_is_not_reused_for_other_bytes_of_equal_name_and_size(
    tmp_path: Path,
) -> None:
    drivers = []
    for rows in (b"111", b"999"):
        stage = tmp_path / rows.decode()
        stage.mkdir()
        (stage / "a.csv").write_bytes(rows)
        job = open_job(str(tmp_path / "lake"), "sales", job_attempt=f"driver-{rows.decode()}")
        (task,) = group_into_tasks(list_staged(stage, marker=None))
        job.expect([task], staging=str(stage))
        drivers.append(job)
        if rows == b"111":
            commit_staged_task(job.destination, job.job_id, job.job_attempt, task.task_id)

    with pytest.raises(ConflictError, match="1 of 1 tasks have not committed"):
        drivers[1].commit()
