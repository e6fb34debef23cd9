"""Scheduled upkeep of the journal, as an Airflow operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from lockgate.operators.dag_run.destinations import check_bool
from lockgate.operators.dag_run.progress import LoggedProgress
from lockgate.operators.dag_run.retries import no_vain_retry
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints, take_checkpoint
from lockgate.storage_core.journal.checkpoint.prune import prune
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.sdk import Context


class JournalCheckpointOperator(BaseOperator):
    """Takes a checkpoint of the journal, proves it by folding the entries, and prunes what it proved.

    Returns the checkpoint's stamp and how much was folded, pruned and forgotten. Fails where a person has to
    look: entries, tables and checkpoints that contradict each other, which the error names (nothing is pruned
    then), and a journal in safe mode (its checkpoint is taken and proved, and nothing is pruned).

    Args:
        report_only: Take the checkpoint and prove it, and only tell what would be pruned.
    """

    template_fields: Sequence[str] = ("report_only",)

    def __init__(self, *, report_only: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.report_only = report_only

    @no_vain_retry()
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        """Look after the journal that the settings name; is skipped where they name none."""
        check_bool("report_only", self.report_only)
        settings = load_settings()
        journal, checkpoints = configured_journal(settings), open_checkpoints(settings)
        if journal is None:
            raise AirflowSkipException("LOCKGATE_JOURNAL_URL=none: there is no journal to look after")
        progress = LoggedProgress(self.log)
        with journal.reading() as reading:
            taken, _ = take_checkpoint(reading, checkpoints)
            self.log.info("checkpoint %s: %d bytes in %s", taken.stamp, taken.size, checkpoints.store.url)
            found = verify(reading, checkpoints, progress)
        found.check()
        self.log.info("folded %d entries from %s: nothing is wrong", found.entries, found.since)
        pruned = prune(
            journal,
            checkpoints,
            kept=settings.checkpoints_kept,
            request_retention_s=settings.request_retention_s,
            dry_run=self.report_only,
            progress=progress,
        )
        return {
            "checkpoint": str(taken.stamp),
            "folded_entries": found.entries,
            "pruned_entries": pruned.entries,
            "forgotten_requests": pruned.requests,
            "deleted_checkpoints": len(pruned.checkpoints),
        }
