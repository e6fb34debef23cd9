"""RevertOperator: the files of an earlier turn are live again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lockgate.operators.dag_run.job_handle import origin_of, run_name
from lockgate.operators.dag_run.log_tables import receipt_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.parameters import check_bool

if TYPE_CHECKING:
    from airflow.sdk import Context


@templated
class RevertOperator(LockgateOperator):
    """Makes exactly the files of an earlier turn live again, as a job of mode `revert`.

    Fails, and changes nothing, if files of that turn are gone or nothing keeps them. A retry or a clear after
    the commit reverts nothing again: jobs that committed since stay.

    Args:
        destination: URL or path of the destination.
        turn: A turn, a time or a tag, as `lockgate revert --to` takes it.
        report_only: Change nothing, only report what would change.
        write_name: Distinguishes several reverts of one task.

    Returns:
        Files and rows that are live again and live no more, and the receipt, if there is one.
    """

    def __init__(
        self,
        *,
        destination: str,
        turn: int | str,
        report_only: bool = False,
        write_name: str = "revert",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.turn = turn
        self.report_only = report_only
        self.write_name = write_name

    @task_entry
    def execute(self, context: Context) -> dict[str, Any]:
        """Revert, and return what changed."""
        from lockgate.storage_core.commit.revert_to_turn import revert_to_turn

        done = revert_to_turn(
            self.destination,
            self.turn,
            dry_run=check_bool("report_only", self.report_only),
            name=run_name(context, self.write_name),
            origin=origin_of(context),
        )
        change, receipt = done.difference, msgspec.to_builtins(done.receipt)
        self.log.info("%d files live again, %d live no more", len(change.added), len(change.removed))
        if receipt is not None:
            self.log.info("\n%s", receipt_table(self.destination, receipt))
        return {
            "files_added": len(change.added),
            "rows_added": change.rows_added,
            "files_removed": len(change.removed),
            "rows_removed": change.rows_removed,
            "receipt": receipt,
        }
