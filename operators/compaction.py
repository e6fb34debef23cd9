"""CompactOperator: small Parquet files of a destination become large ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockgate.operators.dag_run.job_handle import origin_of, run_name
from lockgate.operators.dag_run.log_tables import LoggedProgress, log_table, receipt_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.parameters import check_bool, check_choice, filled_in, positive
from lockgate.operators.spark_process.process import ALL, SparkChild, SparkWork
from lockgate.storage_core.decoding import convert

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.storage_core.compaction.compact import Compaction

MIB: Final = 1024 * 1024


@templated
class CompactOperator(LockgateOperator):
    """Merges the small Parquet files of each partition, as a job that replaces exactly what it has read.

    Jobs may append meanwhile. If another job replaces a file that was read, the task fails and nothing is
    lost; its retry reads the files again. A retry after a crash takes what was merged before.

    Args:
        destination: URL or path of the destination.
        partitions: Folders such as `day=1`, with all below them; empty: the whole destination.
        target_mib: MiB that new files have at most; smaller files are small.
        via: `arrow`: in this task's process; `spark`: in tasks of a Spark session, in a child process.
        master: Spark master URL; None: that of the Spark connection, else all cores of this machine.
        spark_config: Spark settings; they override those of the connection.
        spark_conn_id: Airflow connection of type `spark`.
        report_only: Change nothing, only report what would be merged.
        write_name: Distinguishes several compactions of one task.

    Returns:
        Counts before and after, by partition, the files that were left, and the receipt, if there is one.
    """

    def __init__(
        self,
        *,
        destination: str,
        partitions: Sequence[str] | str | None = None,
        target_mib: int = 256,
        via: str = "arrow",
        master: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
        report_only: bool = False,
        write_name: str = "compact",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.partitions = partitions
        self.target_mib = target_mib
        self.via = via
        self.master = master
        self.spark_config = spark_config
        self.spark_conn_id = spark_conn_id
        self.report_only = report_only
        self.write_name = write_name

    @cached_property
    def _child(self) -> SparkChild:
        return SparkChild(self.log)

    @task_entry
    def execute(self, context: Context) -> dict[str, Any]:
        """Compact the destination, and return the counts."""
        from lockgate.storage_core.compaction.compact import Compaction, compact

        check_choice("via", self.via, ("arrow", "spark"))
        options: dict[str, Any] = {
            "destination": self.destination,
            "partitions": filled_in(self.partitions),
            "target_bytes": positive("target_mib", self.target_mib) * MIB,
            "dry_run": check_bool("report_only", self.report_only),
            "name": run_name(context, self.write_name),
            "origin": origin_of(context),
        }
        if self.via == "spark":
            done = convert(self._on_spark(options), Compaction)
        else:
            done = compact(**options, progress=LoggedProgress(self.log))
        self._log_counts(done)
        counts: dict[str, Any] = msgspec.to_builtins(done)
        return counts

    def _on_spark(self, options: Mapping[str, Any]) -> Any:
        from lockgate.operators.connections import child_settings, spark_place

        place = spark_place(self.master, self.spark_conn_id, None)
        return self._child.run(
            SparkWork(
                run="lockgate.storage_core.compaction.compact:compact_on_spark",
                arguments=dict(options),
                master=place.master,
                remote=place.remote,
                reads_s3=False,
                app_name=f"lockgate {self.dag_id}.{self.task_id}",
                config={**place.config, **(self.spark_config or {})},
                artefacts=None,
                settings=child_settings(ALL),
                needs=ALL,
            )
        )

    def _log_counts(self, done: Compaction) -> None:
        rows = [(one.partition or "/", one.files, one.size, one.into) for one in done.merged]
        table = log_table(("partition", "small files", "bytes", "become"), rows)
        self.log.info("%d live files, then %d\n%s", done.files_before, done.files_after, table)
        for left in done.left:
            self.log.warning("left: %s: %s", left.key, left.reason)
        if done.receipt is not None:
            self.log.info("\n%s", receipt_table(done.destination, msgspec.to_builtins(done.receipt)))

    def on_kill(self) -> None:
        """End the Spark child with the task."""
        self._child.kill()
