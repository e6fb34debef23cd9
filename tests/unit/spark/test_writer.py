"""Effects of planning a direct write on the destination; needs no Java."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from lockgate import attach_job, open_job, read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.spark.schema.columns import recorded_columns
from lockgate.storage_core.spark.source_options import write_options
from lockgate.storage_core.spark.writer.batch import plan_write

SALES = StructType().add("id", LongType()).add("day", StringType())


@pytest.fixture
def destination(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "sales")
    FAILPOINTS.arm({})


def test_planning_sets_up_the_job_and_suspends_it(destination: str) -> None:
    plan_write(SALES, write_options({"path": destination, "jobname": "nightly"}, overwrite=False))
    (job,) = list_jobs(destination)
    assert (job.job_id, job.phase, job.lease) == ("nightly-g1", JobPhase.OPEN, "suspended")
    assert attach_job(destination, job.job_id).record.spec.columns is not None


def test_the_writer_finds_its_job_in_other_processes(
    destination: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    writer = plan_write(SALES, write_options({"path": "sales", "jobname": "nightly"}, overwrite=False))
    monkeypatch.chdir("/")
    pickle.loads(pickle.dumps(writer)).abort([None, None])
    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.FAILED


def test_abort_aborts_a_job_that_the_write_set_up_for_a_later_commit(destination: str) -> None:
    options = {"path": destination, "jobname": "nightly", "commit": "task"}
    plan_write(SALES, write_options(options, overwrite=False)).abort([None])
    (job,) = list_jobs(destination)
    assert job.phase is JobPhase.FAILED


def test_abort_leaves_a_job_open_that_another_process_set_up(destination: str) -> None:
    job = open_job(destination, "nightly", columns=recorded_columns(SALES, []))
    job.suspend()
    options = {
        "path": destination,
        "jobid": job.job_id,
        "jobattempt": job.job_attempt,
        "commit": "task",
    }
    plan_write(SALES, write_options(options, overwrite=False)).abort([None])
    (summary,) = list_jobs(destination)
    assert summary.phase is JobPhase.OPEN


def test_abort_after_the_decision_reverts_nothing(destination: str) -> None:
    writer = plan_write(SALES, write_options({"path": destination, "jobname": "nightly"}, overwrite=False))
    (summary,) = list_jobs(destination)
    job = attach_job(destination, summary.job_id)
    with job.attempt("part-00000") as attempt, attempt.open("part-00000.parquet") as file:
        file.write(b"rows")
    FAILPOINTS.arm({"idle.get.before": "refuse"})
    with pytest.raises(StoreUnavailableError):
        job.commit()
    FAILPOINTS.arm({})
    writer.abort([None])
    assert job.commit().files == 1
    assert len(read_manifest(destination).files) == 1


def test_a_retry_finishes_a_decided_earlier_try_and_reports_it(destination: str) -> None:
    columns = recorded_columns(SALES, [])
    job = open_job(destination, "nightly", columns=columns)
    with job.attempt("part-00000") as attempt, attempt.open("part-00000.parquet") as file:
        file.write(b"rows")
    FAILPOINTS.arm({"idle.get.before": "refuse"})
    with pytest.raises(StoreUnavailableError):
        job.commit()
    job.close()
    FAILPOINTS.arm({})
    with pytest.raises(ConflictError, match="an earlier try of this write has already published"):
        plan_write(SALES, write_options({"path": destination, "jobname": "nightly"}, overwrite=False))
    assert len(read_manifest(destination).files) == 1


def test_the_error_for_an_unknown_job_id_names_it(destination: str) -> None:
    options = {"path": destination, "jobid": "nightly-g1", "jobattempt": "a1"}
    with pytest.raises(ObjectNotFoundError, match="no job nightly-g1"):
        plan_write(SALES, write_options(options, overwrite=False))


def test_columns_are_checked_before_the_destination_is_touched(destination: str) -> None:
    with pytest.raises(InvalidInputError, match="'month' does not exist"):
        plan_write(SALES, write_options({"path": destination, "partitionby": "month"}, overwrite=False))
    assert not Path(destination).exists()
