"""Set-up, commit and abort of a job, as Airflow operators: thin, over `storage_core`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseOperator

from lockgate import open_job
from lockgate.operators.dag_run.job_handle import (
    JobHandle,
    attach,
    drop_artefacts,
    handle_of,
    parked_after,
    parked_on_failure,
    run_name,
)
from lockgate.operators.dag_run.progress import LoggedProgress
from lockgate.operators.dag_run.receipts import announce, flat
from lockgate.operators.dag_run.retries import no_vain_retry
from lockgate.storage_core.commit import JobPhase
from lockgate.storage_core.commit.committers import configured_committer
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.open_store import parse_destination

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.commit import Job, ShardCompleter
    from lockgate.storage_core.commit.records.job import Mode, OnLapse, Rerun, Scope

CompleteBy = Literal["threads", "workers"]


class JobSetupOperator(BaseOperator):
    """Sets a job up, so that what follows can write to a destination without anyone seeing it.

    The job is this task of this DAG run: a retry meets its own earlier work. Running it again after the job
    has ended is a deliberate recomputation, whose commit replaces what the earlier run had published.
    Returns the job's handle for the tasks after it, and parks the job.

    Args:
        destination: URL or path that the job writes.
        write_name: Tells apart two data sets of one task.
        mode: What becomes of data that the destination already has: `append`, `replace`, or `fail`.
        scope: What the mode looks at: the `destination`, or the `partitions` that receive data.
        committer: By name; None: what the settings say, else `staging`.
        description: For people who read the job's record.
        columns: Name and type of each column, where they are known already.
        evolve_schema: Let `append` bring columns that do not fit the destination's.
        audit: Refuse to commit without a passing verdict of `AuditOperator`.
        staging: Directory that every worker sees, under which this job gets one of its own; None: below
            `LOCKGATE_HOME`.
        on_lapse: What recovery does with the job when its park has run out: `abort` or `resume`.
        rerun: What a recomputation does with the earlier run's files: `replace` or `append`.
        artefacts: Output of `BlobUploadOperator`: the job's own from its set-up to its end. A run that is
            cleared after that is cleared from the upload on.
        park_timeout_s: How long recovery leaves the job alone; None: `LOCKGATE_PARK_TIMEOUT_S`.
    """

    template_fields: Sequence[str] = (
        "destination",
        "write_name",
        "mode",
        "scope",
        "committer",
        "description",
        "columns",
        "staging",
        "on_lapse",
        "rerun",
        "artefacts",
    )
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        destination: str,
        write_name: str = "data",
        mode: Mode = "append",
        scope: Scope | None = None,
        committer: str | None = None,
        description: str = "",
        columns: Sequence[tuple[str, str]] | None = None,
        evolve_schema: bool = False,
        audit: bool = False,
        staging: str | None = None,
        on_lapse: OnLapse = "abort",
        rerun: Rerun = "replace",
        artefacts: Mapping[str, Any] | Any = None,
        park_timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.write_name = write_name
        self.mode = mode
        self.scope = scope
        self.committer = committer
        self.description = description
        self.columns = columns
        self.evolve_schema = evolve_schema
        self.audit = audit
        self.staging = staging
        self.on_lapse = on_lapse
        self.rerun = rerun
        self.artefacts = artefacts
        self.park_timeout_s = park_timeout_s

    @no_vain_retry()
    def execute(self, context: Context) -> JobHandle:
        """Set the job up, park it, and return its handle."""
        job = self._open(context)
        if job.phase() is not JobPhase.OPEN:
            self.log.info(
                "job %s was decided by an earlier try, and has been finished: %s", job.job_id, job.phase()
            )
            job = self._open(context)
        with parked_after(job, self.park_timeout_s, self.log):
            self.log.info("job %s at %s, mode %s", job.job_id, job.destination, self.mode)
        return handle_of(job)

    def _open(self, context: Context) -> Job:
        return open_job(
            self.destination,
            run_name(context, self.write_name),
            mode=self.mode,
            scope=self.scope or None,
            committer=self.committer or _committer(self.destination),
            description=self.description or f"{context['ti'].dag_id}, run {context['ti'].run_id}",
            columns=self.columns,
            evolve_schema=self.evolve_schema,
            staging=self.staging,
            audit=self.audit,
            on_lapse=self.on_lapse,
            rerun=self.rerun,
            artefacts=self.artefacts,
        )


def _committer(destination: str) -> str:
    return configured_committer(parse_destination(destination), load_settings(), "staging")


class JobCommitOperator(BaseOperator):
    """Makes all that a job's tasks wrote visible, in one decision, and returns the receipt.

    Succeeds only when the job is committed, so an Asset event of this task always means COMMIT_SUCCESS; its
    `extra` is the receipt. Running it again returns the same receipt.

    Args:
        job: Handle of the job: `write.output["job"]`.
        complete_by: Who completes the uploads: `threads` of this task, or Celery `workers`.
        timeout_s: How long workers may take.
        park_timeout_s: How long recovery leaves the job alone if this task fails before the decision.
    """

    template_fields: Sequence[str] = ("job", "complete_by")
    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        job: JobHandle | Any,
        complete_by: CompleteBy = "threads",
        timeout_s: float = 3600.0,
        park_timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.complete_by = complete_by
        self.timeout_s = timeout_s
        self.park_timeout_s = park_timeout_s

    @no_vain_retry()
    def execute(self, context: Context) -> dict[str, Any]:
        """Commit the job, tell the outlets, and return the receipt."""
        job = attach(self.job, progress=LoggedProgress(self.log))
        with parked_on_failure(job, self.park_timeout_s, self.log):
            receipt = flat(job.commit(complete=self._completer()))
        drop_artefacts(job)
        announce(context, job.destination, receipt, self.outlets)
        self.log.info("committed: %s", receipt)
        return receipt

    def _completer(self) -> ShardCompleter | None:
        if self.complete_by == "threads":
            return None
        if self.complete_by != "workers":
            raise InvalidInputError(
                f"complete_by={self.complete_by!r}: `threads` of the commit task complete the uploads, or "
                "Celery `workers`; nothing was decided"
            )
        from lockgate.workers.dispatch import complete_by_workers  # noqa: PLC0415 - imports Celery

        return partial(complete_by_workers, timeout_s=self.timeout_s, progress=LoggedProgress(self.log))


class JobAbortOperator(BaseOperator):
    """Aborts what a failed run leaves: for the DAG's teardown, `.as_teardown(setups=setup)`.

    As a teardown it runs once everything before it is done, however it ended. Once the commit is decided it
    does nothing: if the commit task was killed half-way, recovery brings the job to its end.

    Args:
        job: Handle of the job: `setup.output`.
        reason: For the job's report.
    """

    template_fields: Sequence[str] = ("job", "reason")
    ui_color = "#f1f3f4"

    def __init__(
        self, *, job: JobHandle | Any, reason: str = "the DAG run ended without a commit", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.reason = reason

    @no_vain_retry()
    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow passes it by name
        """Abort the job unless it is decided; returns the phase that it is left in."""
        job = attach(self.job)
        try:
            job.abort(self.reason)
            phase = str(job.phase())
        finally:
            job.close()
        drop_artefacts(job)
        self.log.info("job %s is %s", job.job_id, phase)
        return phase
