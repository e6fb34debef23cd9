"""JobRecoveryOperator: scheduled recovery of jobs whose drivers are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lockgate.operators.dag_run.job_handle import drop_blobs, triggered_by
from lockgate.operators.dag_run.log_tables import LoggedProgress, log_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import job_address
from lockgate.operators.dag_run.parameters import (
    check_bool,
    check_choice,
    configured_destinations,
    named_destinations,
    seconds,
    watched_destinations,
)
from lockgate.operators.deferral import defer_until, is_deferrable, remaining
from lockgate.operators.jobs import abort_attached
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import load_intervals, load_settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.commit.recovery.expired_jobs import UnendedJobs
    from lockgate.storage_core.commit.recovery.recover import JobAt, RecoveryResult
    from lockgate.storage_core.settings import Settings

RecoverBy = Literal["auto", "threads", "workers"]
COLUMNS: Final = ("job", "destination", "found", "lease", "action", "ended", "detail")
UNRECOVERED: Final = "not recovered yet"
UNFOLDED: Final = 10_000
"""Width of a table with one line for each job, so that a search finds its id and destination."""
PAGES: Final = 50
"""Jobs whose pages the log of a recovery names."""


def recovery_interval() -> timedelta:
    """Return the time between two runs of the recovery DAG: `LOCKGATE_RECOVERY_MINUTES`."""
    return timedelta(minutes=load_intervals().recovery_minutes)


@templated
class JobRecoveryOperator(LockgateOperator):
    """Recovers every job whose driver is gone, by the protocol's recovery table.

    The journal's registry lists jobs with expired leases at all destinations. The watched destinations are
    also scanned, because the registry is an index and may have lost a job.

    Fails at the end only if an operator must act: a job's records contradict each other or cannot be read, or
    a destination cannot be reached.

    Args:
        destinations: Recover only jobs at these destinations (list, or text with commas). None: all jobs in
            the registry, and those at `LOCKGATE_DESTINATIONS`, or else at the destinations of the Airflow
            Variable `lockgate_destinations`. Read when the task runs.
        destination: One more destination, such as that of `job_id`.
        job_id: Recover only this job. Without a destination, the journal's registry finds it, by id or name.
        report_only: Change nothing, only report what would be done.
        abort_reason: Abort the job `job_id` for this reason, also if its driver is alive, as
            `lockgate jobs abort` does; None or empty: recover. Fails if the job is decided to commit.
        recover_by: Who recovers: `workers` (Celery, queue `recovery`), `threads` (of this task) or `auto`
            (workers if `LOCKGATE_BROKER_URL` is set).
        timeout_s: How long workers may take.
        grace_s: How long to wait for a worker if none listens, before threads do the work.
        deferrable: Wait for the workers in the triggerer; None: Airflow's `[operators] default_deferrable`.

    Returns:
        Number of jobs for each action, for each reason to leave jobs alone, and not recovered yet: the next
        run continues with those.
    """

    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        destinations: Sequence[str] | str | None = None,
        destination: str | None = None,
        job_id: str | None = None,
        report_only: bool = False,
        abort_reason: str | None = None,
        recover_by: RecoverBy = "auto",
        timeout_s: float = 3600.0,
        grace_s: float = 60.0,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destinations = destinations
        self.destination = destination
        self.job_id = job_id
        self.report_only = report_only
        self.abort_reason = abort_reason
        self.recover_by = recover_by
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.deferrable = deferrable

    def form_values(self) -> dict[str, Any]:
        """Return what is checked: to recover a job at its own destination is what the schedule does."""
        from lockgate.operators.trigger_rights import without_own_destination

        values = super().form_values()
        return values if self.abort_reason else without_own_destination(values)

    @task_entry
    def execute(self, context: Context) -> dict[str, int]:
        """Find the jobs, recover them, and return how each ended."""
        check_bool("report_only", self.report_only)
        settings = load_settings()
        if self.abort_reason:
            user = triggered_by(context)
            return self._abort(settings, f"{self.abort_reason}; by {user}" if user else self.abort_reason)
        by_workers = self._by_workers(settings)
        unended, unreached = self._find(settings)
        self.log.info(
            "%d jobs to recover; left alone: %s", len(unended.expired), unended.left_alone or "none"
        )
        if by_workers and unended.expired and is_deferrable(self.deferrable):
            self._defer(unended, unreached)
        recover = self._by_celery if by_workers else self._by_threads
        return self._report(recover(unended.expired, settings), unended, unreached)

    @task_entry
    def resume(
        self,
        context: Context,  # noqa: ARG002 - Airflow's
        event: dict[str, str],
        found: dict[str, Any],
        batch: str,
        deadline_s: float,
    ) -> dict[str, int]:
        """Take the workers' results, recover what they did not, and return how each job ended."""
        from lockgate.storage_core.commit.recovery.expired_jobs import UnendedJobs

        unended = convert(found["unended"], UnendedJobs)
        timeout_s, grace_s = remaining(event, deadline_s, seconds("grace_s", self.grace_s))
        results = self._by_celery(
            unended.expired, load_settings(), timeout_s=timeout_s, grace_s=grace_s, batch=batch
        )
        return self._report(results, unended, found["unreached"])

    def _abort(self, settings: Settings, reason: str) -> dict[str, int]:
        from lockgate.storage_core.commit.open_or_attach import attach_job
        from lockgate.storage_core.commit.records.phase import JobPhase

        abortable = {JobPhase.OPEN, JobPhase.ABORTING, JobPhase.QUARANTINED, JobPhase.FAILED}
        if not self.job_id:
            raise InvalidInputError("abort_reason without job_id: name the job; nothing was done")
        jobs = self._find(settings)[0].expired
        if self.restricted:  # the registry may have found the destination
            from lockgate.operators.trigger_rights import allow_lists

            for at in jobs:
                allow_lists().destination(at.destination)
        for at in jobs:
            job = attach_job(at.destination, at.job_id, settings=settings, progress=LoggedProgress(self.log))
            phase = job.phase() if self.report_only else abort_attached(job, reason)
            if phase not in abortable:
                raise AirflowFailException(
                    f"job {at.job_id} at {at.destination} is {phase}: its commit is decided, so it was not "
                    "aborted; recover it instead"
                )
            would = "would be aborted; it is" if self.report_only else "is"
            self.log.info("job %s at %s %s %s: %s", at.job_id, at.destination, would, phase, reason)
            self.log.info("its page: %s", job_address(at.destination, at.job_id))
        return {"abort": len(jobs)}

    def _defer(self, unended: UnendedJobs, unreached: list[str]) -> None:
        """Send the jobs and free the slot; return if the broker does not answer."""
        from lockgate.workers.celery_app import RECOVERY_QUEUE
        from lockgate.workers.dispatch import dispatch_recovery

        timeout_s, grace_s = seconds("timeout_s", self.timeout_s), seconds("grace_s", self.grace_s)
        jobs = unended.expired
        try:
            batch = dispatch_recovery(jobs, dry_run=self.report_only, expires_s=timeout_s)
        except LockgateError as error:
            self.log.warning("not deferred: %s", error)
            return
        self.log.info("%d jobs sent as batch %s", len(jobs), batch)
        waited = {"batch": batch, "count": len(jobs), "queue": RECOVERY_QUEUE, "grace_s": grace_s}
        found = {"unended": msgspec.to_builtins(unended), "unreached": unreached}
        defer_until(self, "batch", waited, timeout_s=timeout_s, batch=batch, found=found)

    def _report(
        self, recovered: Iterable[RecoveryResult], unended: UnendedJobs, unreached: Sequence[str]
    ) -> dict[str, int]:
        results = sorted(recovered, key=lambda r: (r.destination, r.job_id))
        if results:
            self.log.info("recovered:\n%s", summary_table(results))
        for one in results[:PAGES]:
            self.log.info("page of %s: %s", one.job_id, job_address(one.destination, one.job_id))
        for blob_job in [result.artefacts for result in results if result.artefacts]:
            drop_blobs(blob_job)
        self._raise_problems(results, unreached)
        return counts(results, unended)

    def _by_workers(self, settings: Settings) -> bool:
        check_choice("recover_by", self.recover_by, get_args(RecoverBy))
        return self.recover_by == "workers" or (self.recover_by == "auto" and settings.broker_url is not None)

    def _find(self, settings: Settings) -> tuple[UnendedJobs, list[str]]:
        """Return the jobs that have not ended, and a message for each unreadable destination."""
        from lockgate.storage_core.commit.recovery.expired_jobs import (
            UnendedJobs,
            expired_jobs,
            expired_jobs_at,
            registered_job,
        )

        given = named_destinations(self.destinations, self.destination)
        if self.job_id and not given:
            return UnendedJobs(expired=(registered_job(settings, self.job_id),)), []
        if self.job_id:
            return UnendedJobs(expired=tuple(_job_at(url, self.job_id, settings) for url in given)), []
        found, unreached = UnendedJobs(), []
        if not settings.has_journal:
            watched = watched_destinations(given)
        elif not (watched := given):
            found, watched = expired_jobs(settings), configured_destinations()
        for destination in watched:
            try:
                found = found.union(expired_jobs_at(destination, settings=settings))
            except LockgateError as error:
                unreached.append(f"{destination}: {type(error).__name__}: {error}")
        return found, unreached

    def _by_threads(self, jobs: Sequence[JobAt], settings: Settings) -> Iterator[RecoveryResult]:
        from lockgate.storage_core.commit.recovery.recover import recover_jobs

        progress = LoggedProgress(self.log)
        results = recover_jobs(jobs, dry_run=self.report_only, settings=settings)
        for done, result in enumerate(results, start=1):
            progress("recovery", done, len(jobs))
            yield result

    def _by_celery(
        self,
        jobs: Sequence[JobAt],
        settings: Settings,
        *,
        timeout_s: float | None = None,
        grace_s: float | None = None,
        batch: str | None = None,
    ) -> Iterator[RecoveryResult]:
        from lockgate.workers.dispatch import recover_by_workers

        return recover_by_workers(
            jobs,
            settings=settings,
            dry_run=self.report_only,
            timeout_s=seconds("timeout_s", self.timeout_s) if timeout_s is None else timeout_s,
            grace_s=seconds("grace_s", self.grace_s) if grace_s is None else grace_s,
            progress=LoggedProgress(self.log),
            batch=batch,
        )

    def _raise_problems(self, results: Iterable[RecoveryResult], unreached: Sequence[str]) -> None:
        jobs = [f"{r.job_id} at {r.destination}: {r.detail}" for r in results if r.needs_an_operator]
        problems = []
        if unreached:
            problems.append(f"{len(unreached)} destinations need attention: {'; '.join(unreached)}")
        if jobs:
            problems.append(f"{len(jobs)} jobs need attention and were not changed: {'; '.join(jobs)}")
        if problems:
            raise AirflowException("; ".join(problems))


def _job_at(destination: str, job_id: str, settings: Settings) -> JobAt:
    from lockgate.storage_core.commit.records.job_folder import JobFolder
    from lockgate.storage_core.commit.recovery.recover import JobAt
    from lockgate.storage_core.stores import open_store

    folder = JobFolder(open_store(destination, settings), JobId(job_id))
    folder.job()  # a mistyped id is an error, not a job without work
    return JobAt(folder.store.url, folder.job_id)


def counts(results: Iterable[RecoveryResult], unended: UnendedJobs) -> dict[str, int]:
    """Return the number of jobs for each action, each reason to leave them alone, and not recovered yet."""
    found = Counter(str(result.action) for result in results if result.ended is not None)
    found.update(unended.left_alone)
    found[UNRECOVERED] = sum(result.ended is None for result in results)
    return {what: number for what, number in found.items() if number}


def summary_table(results: Iterable[RecoveryResult]) -> str:
    """Return a table with one line for each job."""
    rows = [_row(result) for result in results]
    return log_table(COLUMNS, rows, most_rows=len(rows), width=UNFOLDED)


def _row(result: RecoveryResult) -> tuple[object, ...]:
    found, ended = result.found or "unreadable", result.ended or UNRECOVERED
    detail = " ".join(result.detail.split())
    return result.job_id, result.destination, found, result.lease, result.action, ended, detail
