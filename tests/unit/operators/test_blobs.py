"""Tests of the operators for blobs: upload of artefacts for a job's set-up, and the sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lockgate.operators.blobs import BlobSweepOperator, BlobUploadOperator
from lockgate.storage_core.blobs.blob_protocol import Artefacts, BlobInfo
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import load_settings
from tests.support.airflow.task_run import TaskRun
from tests.support.commit.destination import ManualClock
from tests.support.workers.celery_worker import memory_broker, worker_thread


@pytest.fixture(autouse=True)
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKGATE_BLOB_STORE_URL", (home / "ha").as_uri())


@pytest.fixture
def library(home: Path) -> Path:
    path = home / "rates.py"
    path.write_text("RATE = 1\n")
    return path


def upload(files: Any, **options: Any) -> Any:
    return BlobUploadOperator(task_id="upload", files=files, **options).execute(TaskRun().context())


def sweep(**options: Any) -> Any:
    return BlobSweepOperator(task_id="sweep", **options).execute(TaskRun().context())


def put_long_ago() -> BlobInfo:
    """Put an unreferenced blob, years before now."""
    with open_blobs(load_settings(), clock=ManualClock(1_700_000_000.0)) as blobs:
        return blobs.put(b"unneeded")


def test_files_are_uploaded_as_artefacts_for_a_job_submission(library: Path) -> None:
    artefacts = Artefacts.of_handle(upload([str(library)]))

    assert [(one.name, one.use) for one in artefacts.blobs] == [("rates.py", "library")]
    assert artefacts.job_id.startswith("sales-")
    with open_blobs(load_settings()) as blobs:
        blobs.submit(artefacts.job_id, artefacts.blob_keys)
        assert blobs.get(artefacts.job_id, artefacts.blob_keys[0]) == b"RATE = 1\n"


def test_a_directory_is_uploaded_completely_under_the_named_job(home: Path) -> None:
    folder = home / "udfs" / "deep"
    folder.mkdir(parents=True)
    for name in ("a.jar", "b.jar"):
        (folder / name).write_bytes(name.encode())

    handle = upload(str(home / "udfs"), job_id="sales-g1", use="other", recreatable=True)

    assert (handle["job_id"], handle["names"]) == ("sales-g1", ["deep/a.jar", "deep/b.jar"])
    with open_blobs(load_settings()) as blobs:
        assert {blob.guarantee for blob in blobs.page("sales-g1")} == {"recreatable"}


@pytest.mark.parametrize("options", [{"files": ["/gone"]}, {"files": [], "use": "log"}])
def test_a_file_that_cannot_be_uploaded_fails_the_task_without_retry(options: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match="nothing was"):
        upload(**options)


def test_a_local_sweep_deletes_unreferenced_blobs_and_reports_their_size(library: Path) -> None:
    kept = Artefacts.of_handle(upload([str(library)]))
    gone = put_long_ago()

    assert sweep(report_only=True) == {"staged": {"blobs": 1, "size_bytes": 8}}
    assert sweep() == {"staged": {"blobs": 1, "size_bytes": 8}}

    with open_blobs(load_settings()) as blobs:
        assert blobs.get(kept.job_id, kept.blob_keys[0]) == b"RATE = 1\n"
        with pytest.raises(ObjectNotFoundError):
            blobs.get(gone.job_id, gone.blob_key)


def test_a_worker_of_the_queue_sweep_runs_the_sweep_if_a_broker_is_named() -> None:
    put_long_ago()
    with memory_broker(), worker_thread():
        assert sweep(timeout_s=60) == {"staged": {"blobs": 1, "size_bytes": 8}}


def test_a_refused_delete_fails_the_task() -> None:
    put_long_ago()
    FAILPOINTS.arm({"blob-ha-delete.delete_many.before": "refuse"})
    with pytest.raises(AirflowException, match="1 blobs were left"):
        sweep()
