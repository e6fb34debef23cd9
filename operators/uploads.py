"""UploadSweepOperator: scheduled clean-up of orphaned uploads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.sdk.exceptions import AirflowException

from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import PageLink
from lockgate.operators.dag_run.parameters import check_bool, watched_destinations
from lockgate.storage_core.errors import LockgateError

if TYPE_CHECKING:
    from airflow.sdk import Context


@templated
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

    @task_entry
    def execute(self, context: Context) -> dict[str, dict[str, dict[str, float]]]:  # noqa: ARG002 - Airflow's
        """Sweep every destination; fail at the end if one could not be swept."""
        check_bool("report_only", self.report_only)
        swept, failures = {}, []
        for destination in watched_destinations(self.destinations):
            try:
                swept[destination] = self._sweep(destination)
                self.log.info("%s: %s", destination, swept[destination] or "nothing to do")
            except LockgateError as error:
                failures.append(f"{destination}: {type(error).__name__}: {error}")
        if failures:
            raise AirflowException(f"{len(failures)} destinations need attention: {'; '.join(failures)}")
        return swept

    def _sweep(self, destination: str) -> dict[str, dict[str, float]]:
        from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
        from lockgate.storage_core.commit.uploads.upload_owner import SweepAction

        orphans = frozenset({SweepAction.STAGE, SweepAction.ABORT})
        report = sweep_uploads(destination, dry_run=self.report_only, measure=orphans)
        for swept in report.uploads:
            self.log.info(
                "%s, upload %s: %s: %s %s",
                *(swept.key, swept.upload_id, swept.action, swept.reason, swept.remedy),
            )
        for line in report.lines():
            self.log.info("%s", line)
        totals: dict[str, dict[str, float]] = msgspec.to_builtins(report.by_action)
        return totals
