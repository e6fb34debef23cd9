"""BlobUploadOperator and BlobSweepOperator: upload a job's artefacts, delete unreferenced blobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk.exceptions import AirflowException

from lockgate.operators.dag_run.log_tables import LoggedProgress, log_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import PageLink
from lockgate.operators.dag_run.parameters import check_bool, check_choice, filled_in, seconds
from lockgate.storage_core.ids import job_name, new_token
from lockgate.storage_core.settings import load_intervals, load_settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.blobs.reports import BlobSweepReport
    from lockgate.storage_core.settings import Settings

SweepBy = Literal["auto", "here", "workers"]
Use = Literal["library", "other"]


def sweep_interval() -> timedelta:
    """Return the time between two runs of the sweep's DAG: `LOCKGATE_RETENTION_INTERVAL_S`."""
    return timedelta(seconds=load_intervals().retention_interval_s)


@templated
class BlobUploadOperator(LockgateOperator):
    """Uploads files that a job's tasks need, such as libraries and jars: all of them, or none.

    Set the job up within the retention interval (`LOCKGATE_RETENTION_INTERVAL_S`); artefacts without a job
    are swept after it. A retry uploads again.

    Args:
        files: Paths of files, or of directories whose files are all uploaded, on the machine that runs this
            task. None or empty: upload nothing and return no handle.
        job_id: Id of the job in the blob stores; None: a new one.
        recreatable: Keep the files in the local store only, and release them when the job fails.
        use: Purpose of the files: `library` puts them on the import path of the job's tasks; `other` does
            not.

    Returns:
        Handle of the artefacts, `job_id`, `blob_keys`, `names` and `uses`, for
        `JobSetupOperator(artefacts=upload.output)`; None if nothing was uploaded.
    """

    operator_extra_links = (PageLink("Lockgate blobs", "blobs"),)
    ui_color = "#fff4e5"

    def __init__(
        self,
        *,
        files: Sequence[str] | str | None,
        job_id: str | None = None,
        recreatable: bool = False,
        use: Use = "library",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.files = files
        self.job_id = job_id
        self.recreatable = recreatable
        self.use = use

    @task_entry
    def execute(self, context: Context) -> dict[str, Any] | None:
        """Upload the files and return their handle."""
        from lockgate.storage_core.blobs.blob_protocol import ArtefactFile, Artefacts
        from lockgate.storage_core.blobs.file_transfer import files_below, upload
        from lockgate.storage_core.blobs.open_blobs import open_blobs

        check_bool("recreatable", self.recreatable)
        check_choice("use", self.use, get_args(Use))
        paths = filled_in(self.files)
        if not paths:
            return None
        files = files_below(Path(path) for path in paths)
        job_id = self.job_id or job_name(f"{context['ti'].dag_id}-{new_token()}")
        with open_blobs(load_settings()) as blobs:
            uploaded = upload(
                blobs,
                files,
                job_id=job_id,
                guarantee="recreatable" if self.recreatable else "ha",
                use=self.use,
                progress=LoggedProgress(self.log),
            )
        for blob in uploaded:
            self.log.info("%s: %d bytes, blob %s", blob.name, blob.size_bytes, blob.blob_key)
        artefacts = tuple(
            ArtefactFile(blob_key=blob.blob_key, name=blob.name, use=self.use) for blob in uploaded
        )
        return Artefacts(job_id=job_id, blobs=artefacts).handle()


@templated
class BlobSweepOperator(LockgateOperator):
    """Deletes the blobs that had no reference for a whole retention interval.

    Fails, so that Airflow retries it, if a blob could not be deleted, and while the journal is in safe mode.

    Args:
        report_only: Delete nothing, only report what would be deleted.
        orphans: Also list the stores for bytes that have no row; None: once a day, and after an uploader has
            died.
        sweep_by: `here`: in this task; requires that the local store is on this machine, or that a blob
            server is configured. `workers`: a Celery worker of the queue `sweep`, on the machine of the local
            store. `auto`: workers if `LOCKGATE_BROKER_URL` is set and `LOCKGATE_BLOB_SERVER_URL` is not.
        timeout_s: How long a worker may take.
        grace_s: How long to wait for a worker if none listens.

    Returns:
        For each reason `blobs`, the number deleted, and `size_bytes`.
    """

    operator_extra_links = (PageLink("Lockgate blobs", "blobs"),)
    ui_color = "#fff4e5"

    def __init__(
        self,
        *,
        report_only: bool = False,
        orphans: bool | None = None,
        sweep_by: SweepBy = "auto",
        timeout_s: float = 3600.0,
        grace_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.report_only = report_only
        self.orphans = orphans
        self.sweep_by = sweep_by
        self.timeout_s = timeout_s
        self.grace_s = grace_s

    @task_entry
    def execute(self, context: Context) -> dict[str, dict[str, int]]:  # noqa: ARG002 - Airflow's
        """Sweep, and return what was deleted."""
        check_bool("report_only", self.report_only)
        if self.orphans is not None:
            check_bool("orphans", self.orphans)
        settings = load_settings()
        report = self._by_worker() if self._is_by_worker(settings) else self._here(settings)
        table = log_table(("what", "number", "bytes"), report.rows())
        self.log.info("%s:\n%s", "would be swept" if report.is_dry_run else "swept", table)
        for blob in report.blobs:
            self.log.info("%s/%s: %d bytes: %s", blob.job_id, blob.blob_key, blob.size_bytes, blob.why)
        if report.problems:
            raise AirflowException(
                f"{report.left} blobs were left, the next sweep tries again: {'; '.join(report.problems)}"
            )
        return {
            str(why): {"blobs": amount.blobs, "size_bytes": amount.size_bytes}
            for why, amount in report.swept.items()
        }

    def _is_by_worker(self, settings: Settings) -> bool:
        check_choice("sweep_by", self.sweep_by, get_args(SweepBy))
        prefers_workers = settings.broker_url is not None and settings.blob_server_url is None
        return self.sweep_by == "workers" or (self.sweep_by == "auto" and prefers_workers)

    def _by_worker(self) -> BlobSweepReport:
        from lockgate.workers.dispatch import sweep_blobs

        return sweep_blobs(
            dry_run=self.report_only,
            orphans=self.orphans,
            timeout_s=seconds("timeout_s", self.timeout_s),
            grace_s=seconds("grace_s", self.grace_s),
        )

    def _here(self, settings: Settings) -> BlobSweepReport:
        from lockgate.storage_core.blobs.open_blobs import open_blobs

        with open_blobs(settings) as blobs:
            return blobs.sweep(
                dry_run=self.report_only, orphans=self.orphans, progress=LoggedProgress(self.log)
            )
