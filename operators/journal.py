"""JournalCheckpointOperator: scheduled maintenance of the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from lockgate.operators.dag_run.log_tables import LoggedProgress
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import PageLink
from lockgate.operators.dag_run.parameters import check_bool
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.journal import Journal
    from lockgate.storage_core.settings import Settings


@templated
class JournalCheckpointOperator(LockgateOperator):
    """Takes a checkpoint of the journal, verifies it by folding the entries, and prunes what it covers.

    Skips the task if there is no journal. Fails, without pruning, if an operator must act: if entries, tables
    and checkpoints contradict each other (the error names them), or if the journal is in safe mode (the
    checkpoint is taken and verified).

    Args:
        report_only: Take and verify the checkpoint, and only report what would be pruned.
        leave_safe_mode: Reason for safe mode to drop after the verification, as
            `lockgate journal leave-safe-mode` does, instead of pruning; None or empty: none.

    Returns:
        The stamp of the `checkpoint`, and the numbers `folded_entries`, `pruned_entries`,
        `forgotten_requests` and `deleted_checkpoints`; with `leave_safe_mode` instead of the last three the
        number of `remaining_reasons`.
    """

    operator_extra_links = (PageLink("Lockgate journal", "journal"),)

    def __init__(
        self, *, report_only: bool = False, leave_safe_mode: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.report_only = report_only
        self.leave_safe_mode = leave_safe_mode

    @task_entry
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        """Maintain the configured journals; skip the task if there is none."""
        check_bool("report_only", self.report_only)
        settings = load_settings()
        if not settings.has_journal:
            raise AirflowSkipException("LOCKGATE_JOURNAL_URL=none: there is no journal to maintain")
        done = self._maintain(settings, self.leave_safe_mode)
        for name in sorted(settings.journals):
            more = self._maintain(settings.for_journal(name), None)
            done |= {f"{name}.{key}": value for key, value in more.items()}
        return done

    def _maintain(self, settings: Settings, leave_safe_mode: str | None) -> dict[str, Any]:
        """Maintain one journal."""
        from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints, take_checkpoint
        from lockgate.storage_core.journal.checkpoint.prune import prune
        from lockgate.storage_core.journal.checkpoint.verify import verify
        from lockgate.storage_core.journal.process_journal import configured_journal

        journal, checkpoints = configured_journal(settings), open_checkpoints(settings)
        if journal is None:
            return {}
        progress = LoggedProgress(self.log)
        with journal.reading() as reading:
            taken, _ = take_checkpoint(reading, checkpoints)
            self.log.info("checkpoint %s: %d bytes in %s", taken.stamp, taken.size, checkpoints.store.url)
            found = verify(reading, checkpoints, progress)
        found.check()
        self.log.info("folded %d entries from %s: no contradictions", found.entries, found.since)
        done = {"checkpoint": str(taken.stamp), "folded_entries": found.entries}
        if leave_safe_mode:
            return {**done, "remaining_reasons": self._leave(journal, leave_safe_mode)}
        pruned = prune(
            journal,
            checkpoints,
            kept=settings.checkpoints_kept,
            request_retention_s=settings.request_retention_s,
            dry_run=self.report_only,
            progress=progress,
        )
        return {
            **done,
            "pruned_entries": pruned.entries,
            "forgotten_requests": pruned.requests,
            "deleted_checkpoints": len(pruned.checkpoints),
        }

    def _leave(self, journal: Journal, reason: str) -> int:
        """Drop a reason for safe mode; return how many remain."""
        from lockgate.storage_core.journal.safe_mode import leave_safe_mode

        if not self.report_only:
            leases = leave_safe_mode(journal, reason)
            self.log.info("dropped the reason %s for safe mode; restarted %s leases", reason, leases or 0)
        return len(journal.status().safe_reasons)
