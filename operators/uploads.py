"""UploadSweepOperator: scheduled clean-up of orphaned uploads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lockgate.operators.connections.connected import with_connections
from lockgate.operators.dag_run.destinations import for_each_destination, watched_destinations
from lockgate.operators.dag_run.operator import CONNECTIONS, LockgateOperator
from lockgate.operators.dag_run.page_links import PageLink
from lockgate.operators.dag_run.parameters import check_bool
from lockgate.operators.dag_run.retries import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context


class UploadSweepOperator(LockgateOperator):
    """Aborts the uploads of jobs that have ended, and uploads without an owner that two sweeps have found.

    Args:
        destinations: URLs or paths, as a list or as text with commas; None: `LOCKGATE_DESTINATIONS`, else the
            Airflow Variable `lockgate_destinations`, read when the task runs.
        report_only: Change nothing, only report what would be done.

    Returns:
        For each destination and action the number of uploads, their bytes and their cost a month in USD. Of
        uploads that a job may still need only the number: their bytes are not requested.
    """

    operator_extra_links = (PageLink("Lockgate uploads", "uploads"),)
    template_fields: Sequence[str] = (*CONNECTIONS, "destinations", "report_only")
    template_fields_renderers = {"destinations": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(
        self,
        *,
        destinations: Sequence[str] | str | None = None,
        report_only: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destinations = destinations
        self.report_only = report_only

    @fail_without_retry()
    @with_connections
    def execute(self, context: Context) -> dict[str, dict[str, dict[str, float]]]:  # noqa: ARG002 - Airflow's
        """Sweep every destination; fail at the end if one could not be swept."""
        check_bool("report_only", self.report_only)
        return for_each_destination(watched_destinations(self.destinations), self._sweep, self.log)

    def _sweep(self, destination: str) -> dict[str, dict[str, float]]:
        from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads  # noqa: PLC0415 - when a task runs
        from lockgate.storage_core.commit.uploads.upload_owner import SweepAction  # noqa: PLC0415 - when a task runs

        orphans = frozenset({SweepAction.STAGE, SweepAction.ABORT})
        report = sweep_uploads(destination, dry_run=self.report_only, measure=orphans)
        for swept in report.uploads:
            self.log.info(
                "%s, upload %s: %s: %s %s",
                *(swept.key, swept.upload_id, swept.action, swept.reason, swept.remedy),
            )
        for ended in report.jobs:
            self.log.info("%s: %s", ended.job_id, ended.action)
        totals: dict[str, dict[str, float]] = msgspec.to_builtins(report.by_action)
        return totals
