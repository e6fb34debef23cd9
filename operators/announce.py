"""JobAnnounceOperator: emit the Asset events of jobs whose commit task was killed after the decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import AssetAlias
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError, ErrorType

from lockgate.operators.asset_events import (
    PendingEvents,
    drop_pending,
    emit_as,
    flat,
    pending_keys,
    read_pending,
    was_emitted,
)
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.parameters import (
    check_bool,
    configured_destinations,
    named_destinations,
    watched_destinations,
)
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.layout import ASSET_EVENTS
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    LockgateError,
    MalformedRecordError,
    ObjectNotFoundError,
    RecordVersionError,
)
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import Store, open_store

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.settings import Settings

RECOVERED: Final = "lockgate_recovered"
"""Alias of this operator: its events are those of all recovered jobs."""
RECENT_S: Final = 7 * 86_400.0
"""Destinations of the journal at which no job has changed for longer are not listed."""
DESTINATIONS_AT_ONCE: Final = 8
FINISHED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States of a task instance that does not run again by itself."""


@templated
class JobAnnounceOperator(LockgateOperator):
    """Emits the Asset events that commit tasks did not emit, because they were killed after the decision.

    A commit task writes its outlets down at the destination before the decision. If it does not end
    successfully, but recovery or `lockgate jobs recover` commits its job, this operator emits the same events
    with the same `extra`, once for each job. While the commit task still runs or waits for a retry, it is
    left to that task. Put it after `JobRecoveryOperator`, as a teardown, so that it also runs if recovery
    failed.

    A record that is damaged, or names an Asset that Airflow does not have, does not stop the others. The task
    fails, without a retry, in the first run that has no other event to emit.

    Args:
        destinations: Look only at these destinations (list, or text with commas). None: those at which a job
            of the journal changed in the last 7 days, and those that are configured for recovery.
        destination: One more destination.
        job_id: Emit only the events of this job.
        report_only: Emit nothing, only report.

    Returns:
        Ids of the jobs whose events it emits, or with `report_only` would emit.
    """

    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        destinations: Sequence[str] | str | None = None,
        destination: str | None = None,
        job_id: str | None = None,
        report_only: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"outlets": [AssetAlias(RECOVERED)], **kwargs})
        self.destinations = destinations
        self.destination = destination
        self.job_id = job_id
        self.report_only = report_only

    def form_values(self) -> dict[str, Any]:
        """Return what is checked: to announce a job at its own destination is what the schedule does."""
        from lockgate.operators.trigger_rights import without_own_destination

        return without_own_destination(super().form_values())

    @task_entry
    def execute(self, context: Context) -> list[str]:
        """Emit the events, and return the jobs' ids."""
        check_bool("report_only", self.report_only)
        settings, emitted, bad = load_settings(), list[str](), list[str]()
        found = in_parallel(
            lambda url: self._list(url, settings, bad), self._destinations(settings), DESTINATIONS_AT_ONCE
        )
        for store, record in [each for listed in found for each in listed]:
            try:
                if self._emit(context, store, record):
                    emitted.append(record.job_id)
            except (LockgateError, AirflowRuntimeError) as error:
                self._left(store, record, f"{type(error).__name__}: {error}")
                if isinstance(error, AirflowRuntimeError) and error.error.error is ErrorType.ASSET_NOT_FOUND:
                    bad.append(f"job {record.job_id} at {store.url}: {error}")
        if bad and not emitted:  # a task that fails emits no event
            raise AirflowFailException(
                f"{len(bad)} records of Asset events are damaged, or name an Asset that Airflow does not "
                f"have, such as {bad[0]}; their events were not emitted; use the Asset in a DAG, or delete "
                f"the records below {ASSET_EVENTS}"
            )
        return emitted

    def _list(self, url: str, settings: Settings, bad: list[str]) -> list[tuple[Store, PendingEvents]]:
        found = list[tuple[Store, PendingEvents]]()
        try:
            store = open_store(url, settings)
            for key in pending_keys(store, self.job_id or ""):
                try:
                    found.append((store, read_pending(store, key)))
                except ObjectNotFoundError:
                    pass  # its commit task has ended, and has deleted it
                except MalformedRecordError as error:
                    self.log.warning("%s: Asset events not read: %s", url, error)
                    if not isinstance(error, RecordVersionError):
                        bad.append(f"{url}: {error}")
        except LockgateError as error:
            # A task that fails emits no event, so one destination must not stop the others' events.
            self.log.warning("%s: Asset events not read: %s; the next run tries again", url, error)
        return found

    def _destinations(self, settings: Settings) -> list[str]:
        given = named_destinations(self.destinations, self.destination)
        if given:
            return given
        if not settings.has_journal:
            return watched_destinations(None)
        from lockgate.storage_core.commit.recovery.expired_jobs import recent_destinations

        return list(dict.fromkeys([*recent_destinations(settings, RECENT_S), *configured_destinations()]))

    def _emit(self, context: Context, store: Store, record: PendingEvents) -> bool:
        """Emit the events of a job if nothing else will; return whether there were any."""
        from lockgate.storage_core.commit.job_summary import receipt_of

        folder = JobFolder(store, record.job_id)
        try:
            folder.job()
        except ObjectNotFoundError:
            return self._forget(store, record, "the job is gone")
        phase = folder.phase()
        if phase is JobPhase.FAILED:
            return self._forget(store, record, "the job has failed")
        receipt = receipt_of(folder)
        if phase is not JobPhase.COMMITTED or receipt is None:
            return self._left(store, record, f"the job is {phase}")
        if (state := _state(context, record)) not in FINISHED:
            return self._left(store, record, f"its commit task is {state or 'not scheduled yet'}")
        extra = {"destination": store.url, **flat(receipt)}
        missing = [outlet for outlet in record.outlets if not was_emitted(outlet, extra)]
        if not missing:
            return self._forget(store, record, "they are emitted")
        self.log.info("job %s at %s: emitting %d Asset events", record.job_id, store.url, len(missing))
        if not self.report_only:
            for outlet in missing:
                emit_as(self, context, AssetAlias(RECOVERED), outlet, extra)
        return True

    def _forget(self, store: Store, record: PendingEvents, why: str) -> bool:
        self.log.info("job %s at %s: no Asset event is pending: %s", record.job_id, store.url, why)
        if not self.report_only:
            drop_pending(store, record.job_id)
        return False

    def _left(self, store: Store, record: PendingEvents, why: str) -> bool:
        self.log.info("job %s at %s: Asset events left pending: %s", record.job_id, store.url, why)
        return False


def _state(context: Context, record: PendingEvents) -> str | None:
    """Return the state of a job's commit task; `removed` if Airflow does not know the task any more."""
    states = context["ti"].get_task_states(
        dag_id=record.dag_id, run_ids=[record.run_id], task_ids=[record.task_id]
    )
    name = record.task_id if record.map_index < 0 else f"{record.task_id}_{record.map_index}"
    found: str | None = states.get(record.run_id, {}).get(name, "removed")
    return found
