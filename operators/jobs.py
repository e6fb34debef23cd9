"""JobSetupOperator, JobCommitOperator and JobAbortOperator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, get_args

from lockgate.operators.asset_events import drop_pending, emit_once, flat, save_pending
from lockgate.operators.dag_run.job_handle import (
    JobHandle,
    NamedJob,
    attach,
    drop_artefacts,
    handle_of,
    origin_of,
    run_name,
    suspended_after,
    suspended_on_failure,
)
from lockgate.operators.dag_run.lineage import lineage_if_installed, lineage_of_destination
from lockgate.operators.dag_run.log_tables import LoggedProgress, receipt_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import job_address
from lockgate.operators.dag_run.parameters import (
    check_bool,
    check_choice,
    filled_in,
    from_template,
    seconds,
    seconds_or_none,
)
from lockgate.operators.deferral import defer_until, is_deferrable, remaining
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.publish.shard_completion import ShardCompleter, ShardReport
    from lockgate.storage_core.commit.records.job_record import Mode, OnLapse, Rerun, ScopeName
    from lockgate.storage_core.commit.records.phase import JobPhase
    from lockgate.storage_core.ids import JobId

CompleteBy = Literal["auto", "threads", "workers"]

DECIDED: Final = (
    "job %s at %s is decided: its data will be visible. If this log ends here, the task was killed, and "
    "nothing is lost: a retry of this task or the DAG job_recovery finishes the job and emits its Asset "
    "events; do not run the job again. To look: `lockgate jobs show %s %s`, or %s"
)


@templated
class JobSetupOperator(LockgateOperator):
    """Sets a job up: the tasks after it write to a destination, and readers see nothing before the commit.

    A DAG run, this task and its map index identify the job, so a retry finds its earlier work. Running the
    task again after the job has ended is a deliberate recomputation: its commit replaces what the earlier run
    published. Suspends the job for the tasks after it.

    Args:
        destination: URL or path that the job writes.
        write_name: Distinguishes the data sets of one task.
        mode: What happens to data that the destination already has: `append`, `replace`, or `fail`.
        scope: What the mode applies to: the `destination`, or the `partitions` that receive data; None: by
            the committer.
        committer: Name of the committer; None: the one of the settings, else `staging`.
        description: Text for readers of the job's record.
        columns: Name and type of each column, if they are already known.
        evolve_schema: Allow the job to add, leave out and widen columns of the destination.
        tables: Table formats that the destination's turns are projected into from now on: `delta`, `iceberg`.
        audit: Refuse to commit without a passing verdict of `AuditOperator`.
        staging: Directory that every worker can read, in which the job gets a directory; None: below
            `LOCKGATE_HOME`.
        on_lapse: What recovery does with the job when its suspension has expired: `abort` or `resume`.
        rerun: What a recomputation does with the earlier run's files: `replace` or `append`.
        artefacts: Output of `BlobUploadOperator`; the job owns them from its set-up to its end. To clear the
            run after that, clear it from the upload on.
        suspend_timeout_s: How long recovery leaves the job alone; None: `LOCKGATE_SUSPEND_TIMEOUT_S`.

    Returns:
        The job's handle: `destination`, `job_id`, `job_attempt`, and with a journal `lockgate_at_least`.
    """

    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        destination: str,
        write_name: str = "data",
        mode: Mode = "append",
        scope: ScopeName | None = None,
        committer: str | None = None,
        description: str = "",
        columns: Sequence[tuple[str, str]] | None = None,
        evolve_schema: bool = False,
        tables: Sequence[str] | None = None,
        audit: bool = False,
        staging: str | None = None,
        on_lapse: OnLapse = "abort",
        rerun: Rerun = "replace",
        artefacts: Mapping[str, Any] | Any = None,
        suspend_timeout_s: float | None = None,
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
        self.tables = tables
        self.audit = audit
        self.staging = staging
        self.on_lapse = on_lapse
        self.rerun = rerun
        self.artefacts = artefacts
        self.suspend_timeout_s = suspend_timeout_s
        self.job: NamedJob | None = None  # for the link

    @task_entry
    def execute(self, context: Context) -> JobHandle:
        """Set the job up, suspend it, and return its handle."""
        from lockgate.storage_core.commit.records.phase import JobPhase

        suspend_timeout_s = seconds_or_none("suspend_timeout_s", self.suspend_timeout_s)
        job = self._open(context)
        if job.phase() is not JobPhase.OPEN:
            page = job_address(job.destination, job.job_id)
            done = "job %s was decided by an earlier try and is finished: %s; its page: %s"
            self.log.info(done, job.job_id, job.phase(), page)
            job = self._open(context)
        self.job = NamedJob(destination=job.destination, job_id=job.job_id, job_attempt=job.job_attempt)
        with suspended_after(job, suspend_timeout_s, self.log):
            self.push_links(context)
            self.log.info("job %s at %s, mode %s", job.job_id, job.destination, self.mode)
            self.log.info("its page: %s", job_address(job.destination, job.job_id))
            if self.on_lapse == "resume":  # recovery may commit the job before its commit task begins
                for commit in self._commits():
                    save_pending(job, context["ti"], commit.outlets, task_id=commit.task_id)
        return handle_of(job)

    def _commits(self) -> list[BaseOperator | MappedOperator]:
        """Return the commit task after this task; none if it is not in this DAG."""
        after = self.get_flat_relatives(upstream=False) if self.get_dag() is not None else []
        return [task for task in after if issubclass(_class_of(task), JobCommitOperator)][:1]

    def _open(self, context: Context) -> Job:
        from lockgate.storage_core.commit.open_or_attach import open_job

        return open_job(
            self.destination,
            run_name(context, self.write_name),
            origin=origin_of(context),
            mode=self.mode,
            scope=self.scope or None,
            committer=self.committer or _committer(self.destination),
            description=self.description or f"{context['ti'].dag_id}, run {context['ti'].run_id}",
            columns=self.columns,
            evolve_schema=check_bool("evolve_schema", self.evolve_schema),
            tables=filled_in(self.tables),
            staging=self.staging,
            audit=check_bool("audit", self.audit),
            on_lapse=self.on_lapse,
            rerun=self.rerun,
            artefacts=from_template(self.artefacts),
        )


def _class_of(task: BaseOperator | MappedOperator) -> type:
    found: type = getattr(task, "operator_class", type(task))
    return found


def _committer(destination: str) -> str:
    from lockgate.storage_core.commit.committers import configured_committer
    from lockgate.storage_core.stores.open_store import parse_destination

    return configured_committer(parse_destination(destination), load_settings(), "staging")


@templated
class JobCommitOperator(LockgateOperator):
    """Makes everything that a job's tasks wrote visible, by one decision.

    Succeeds only if the job is committed, so an Asset event of this task always means COMMIT_SUCCESS; its
    `extra` is the receipt. Running it again returns the same receipt, and emits no event that Airflow has. If
    it is killed after the decision, `job_recovery` finishes the job and emits its events.

    Args:
        job: Handle of the job: `write.output["job"]`.
        complete_by: What completes the uploads: `threads` of this task, Celery `workers`, or `auto`: workers
            if `LOCKGATE_BROKER_URL` is set and the job has more than `LOCKGATE_COMMIT_SHARD_FILES` files.
        timeout_s: How long workers may take.
        suspend_timeout_s: How long recovery leaves the job alone if this task fails before the decision.
        allow_empty: Commit a job without a task list of which no task has committed.
        deferrable: Wait for `workers` in the triggerer; None: Airflow's `[operators] default_deferrable`.

    Returns:
        The receipt, flat: `job_id`, `turn`, `files`, `rows`, `size` and more.
    """

    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        job: JobHandle | Any,
        complete_by: CompleteBy = "auto",
        timeout_s: float = 3600.0,
        suspend_timeout_s: float | None = None,
        allow_empty: bool = False,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.complete_by = complete_by
        self.timeout_s = timeout_s
        self.suspend_timeout_s = suspend_timeout_s
        self.allow_empty = allow_empty
        self.deferrable = deferrable
        self._lineage: OperatorLineage[Any, Any] | None = None

    @task_entry
    def execute(self, context: Context) -> dict[str, Any]:
        """Commit the job, emit the Asset events, and return the receipt."""
        check_choice("complete_by", self.complete_by, get_args(CompleteBy))
        return self._commit(context, partial(self._complete, seconds("timeout_s", self.timeout_s)))

    @task_entry
    def resume(
        self, context: Context, event: dict[str, str], batch: str, deadline_s: float
    ) -> dict[str, Any]:
        """Take the results of the workers, end the decided job, and return the receipt."""
        from lockgate.workers.dispatch import GRACE_S, complete_by_workers

        timeout_s, grace_s = remaining(event, deadline_s, GRACE_S)
        progress = LoggedProgress(self.log)
        completer = partial(
            complete_by_workers, timeout_s=timeout_s, grace_s=grace_s, progress=progress, batch=batch
        )
        return self._commit(context, completer)

    def _commit(self, context: Context, completer: ShardCompleter) -> dict[str, Any]:
        from lockgate.storage_core.commit.records.phase import JobPhase

        suspend_timeout_s = seconds_or_none("suspend_timeout_s", self.suspend_timeout_s)
        allow_empty = check_bool("allow_empty", self.allow_empty)
        job = attach(self.job, progress=LoggedProgress(self.log))
        with suspended_on_failure(job, suspend_timeout_s, self.log):
            if is_first := job.phase() is JobPhase.OPEN:
                save_pending(job, context["ti"], self.outlets)
            receipt = flat(job.commit(complete=completer, allow_empty=allow_empty))
        drop_artefacts(job)
        self._lineage = lineage_if_installed(self.job)
        emit_once(self, context, job, receipt, is_first=is_first)
        page = job_address(job.destination, job.job_id)  # not in the table, which would fold it
        self.log.info("committed; its page: %s\n%s", page, receipt_table(job.destination, receipt))
        return receipt

    def get_openlineage_facets_on_complete(
        self,
        task_instance: Any,  # noqa: ARG002 - its caller passes it
    ) -> OperatorLineage[Any, Any]:
        """Return the destination with rows, bytes, columns and turn, for the OpenLineage provider.

        The provider calls it in a fork of the task's process, in which a store may never answer.
        """
        return self._lineage or lineage_of_destination(self.job)

    def _complete(
        self, timeout_s: float, destination: str, job_id: JobId, plan: str, shard_count: int
    ) -> Iterable[ShardReport]:
        """Begin the completion of a decided plan; threads complete what this does not yield."""
        # In advance, because a process that is killed logs nothing, and its page shows this log.
        page = job_address(destination, job_id)
        self.log.info(DECIDED, job_id, destination, destination, job_id, page)
        if not self._is_by_workers(shard_count):
            return ()
        from lockgate.workers.dispatch import complete_by_workers

        if is_deferrable(self.deferrable):
            try:
                self._defer(timeout_s, destination, job_id, plan, shard_count)
            except LockgateError as error:
                self.log.warning("job %s: this task completes all shards: %s", job_id, error)
                return ()
        progress = LoggedProgress(self.log)
        return complete_by_workers(
            destination, job_id, plan, shard_count, timeout_s=timeout_s, progress=progress
        )

    def _is_by_workers(self, shard_count: int) -> bool:
        if self.complete_by != "auto":
            return self.complete_by == "workers"
        from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES

        settings = load_settings()
        return settings.broker_url is not None and shard_count * SHARD_ENTRIES > settings.commit_shard_files

    def _defer(
        self, timeout_s: float, destination: str, job_id: JobId, plan: str, shard_count: int
    ) -> NoReturn:
        """Send the shards and free the slot; the decided job needs no lease."""
        from lockgate.workers.celery_app import COMMIT_QUEUE
        from lockgate.workers.dispatch import GRACE_S, dispatch_shards

        batch = dispatch_shards(destination, job_id, plan, shard_count, expires_s=timeout_s)
        self.log.info("job %s: %d shards sent as batch %s", job_id, shard_count, batch)
        waited = {"batch": batch, "count": shard_count, "queue": COMMIT_QUEUE, "grace_s": GRACE_S}
        defer_until(self, "batch", waited, timeout_s=timeout_s, batch=batch)


@templated
class JobAbortOperator(LockgateOperator):
    """Aborts the job of a failed run; use it as the DAG's teardown: `.as_teardown(setups=setup)`.

    A teardown runs after all tasks before it have ended, also if they failed. After the decision to commit it
    does nothing: if the commit task was killed, recovery finishes the job.

    Args:
        job: Handle of the job: `setup.output`.
        reason: Reason in the job's report; None: that its audit failed, or that the run ended without a
            commit.

    Returns:
        The job's phase after it: `failed`, or that of a job that was decided before.
    """

    ui_color = "#f1f3f4"

    def __init__(self, *, job: JobHandle | Any, reason: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.reason = reason

    @task_entry
    def execute(self, context: Context) -> str:  # noqa: ARG002 - Airflow passes it by name
        """Abort the job unless it is decided, and return its phase."""
        from lockgate.storage_core.commit.records.phase import JobPhase

        job = attach(self.job)
        phase = abort_attached(job, self.reason or _why_aborted(job))
        page = job_address(job.destination, job.job_id)
        if phase in {JobPhase.DECIDED, JobPhase.PUBLISHED}:
            self.log.warning(
                "job %s at %s is %s: its commit was interrupted after the decision, so it is not aborted; "
                "a retry of the commit task or the DAG job_recovery finishes it; its page: %s",
                *(job.job_id, job.destination, phase, page),
            )
        else:
            self.log.info("job %s at %s is %s; its page: %s", job.job_id, job.destination, phase, page)
        return str(phase)


def _why_aborted(job: Job) -> str:
    """Return why a run ended without a commit, as far as the job's records say it."""
    from lockgate.storage_core.commit.records.job_folder import JobFolder

    try:
        verdict = JobFolder(job.store, job.job_id).newest_audit()
    except LockgateError:  # the reason must not stop the abort
        verdict = None
    if verdict is None or verdict.passed:
        return "the DAG run ended without a commit"
    failure = verdict.summary.get("failure_1")
    return f"its audit failed: {failure}" if failure else "its audit failed"


def abort_attached(job: Job, reason: str) -> JobPhase:
    """Abort a job unless it is decided to commit, with its artefacts and Asset events; return its phase."""
    from lockgate.storage_core.commit.records.phase import JobPhase

    try:
        job.abort(reason)
        phase = job.phase()
    finally:
        job.close()
    drop_artefacts(job)
    if phase is JobPhase.FAILED:
        drop_pending(job.store, job.job_id)
    return phase
