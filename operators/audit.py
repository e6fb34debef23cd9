"""AuditOperator: validate a job's staged rows with Great Expectations before the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from lockgate.operators.audits.suites import Suite
from lockgate.operators.audits.validation import COLUMNS, Validation, failed_rows, failing, page
from lockgate.operators.dag_run.job_handle import JobHandle, attach_open, suspended_after
from lockgate.operators.dag_run.log_tables import log_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import PageLink, job_address
from lockgate.operators.dag_run.parameters import check_choice, seconds_or_none
from lockgate.operators.spark_process.process import ALL, SparkChild, SparkWork
from lockgate.storage_core.errors import AuditFailedError, InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lockgate.operators.audits.staged_rows import StagedRows
    from lockgate.storage_core.commit.job import Job


Engine = Literal["pandas", "spark", "statistics"]
RECORDED: Final = 10
"""Failures, and warnings, that a verdict's record names."""
FORMATS: Final = ("parquet", "orc", "json", "csv")


@templated
class AuditOperator(LockgateOperator):
    """Validates the staged rows and records a verdict on exactly the pending sets that the commit takes.

    Files that Spark has written into open uploads cannot be read: they are audited as with the engine
    `statistics`. Except for that, the staged files must have the names and sizes that the workers
    committed, and as many rows as the workers counted; with a suite, also their bytes. If the data fail
    the suite, the verdict is recorded and the task fails without retries: nothing becomes visible, and
    the job cannot be committed.

    Args:
        job: Handle of the job: `write.output["job"]`.
        suite: `suite.to_json_dict()`, path of a JSON file that holds it, or `(great_expectations) -> suite`;
            None or an empty text: check only sizes and counts.
        format: Format of the staged files; CSV files have a header.
        engine: `pandas` reads all rows into memory; `spark` does not. `statistics` reads no rows: it answers
            the suite from the counts, nulls, minima and maxima that writers recorded, for jobs whose tasks
            write Parquet files directly; expectations that these cannot answer are refused by name.
        columns: Columns to read with pandas; None: all.
        options: Options of Spark's reader, for the engine `spark`.
        master: Spark master URL, for the engine `spark`; None: that of the Spark connection, else all cores
            of this machine. Its executors read the staged files, so they need the same disk.
        spark_config: Spark settings, for the engine `spark`; they override those of the connection.
        spark_conn_id: Airflow connection of type `spark`, for the engine `spark`: master, deploy mode and
            settings.
        data_docs: Directory in which the result is written as `<job id>.html`, a page that loads nothing from
            the network.
        suspend_timeout_s: How long recovery leaves the job alone; None: `LOCKGATE_SUSPEND_TIMEOUT_S`.

    Returns:
        Summary of the verdict: `suite`, `passed`, `rows`, `files`, numbers of `expectations`, `failed` and
        `warned`, and the first ten of the warnings: `warning_1`, ...
    """

    operator_extra_links = (PageLink(), PageLink("Data Docs", section="#audit"))
    ui_color = "#fce8e6"

    def __init__(
        self,
        *,
        job: JobHandle | Any,
        suite: Suite | None = None,
        format: str = "parquet",  # noqa: A002 - as Spark calls it
        engine: Engine = "pandas",
        columns: Sequence[str] | None = None,
        options: Mapping[str, str] | None = None,
        master: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
        data_docs: str | None = None,
        suspend_timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.suite = suite
        self.format = format
        self.engine = engine
        self.columns = columns
        self.options = options
        self.master = master
        self.spark_config = spark_config
        self.spark_conn_id = spark_conn_id
        self.data_docs = data_docs
        self.suspend_timeout_s = suspend_timeout_s

    @cached_property
    def _child(self) -> SparkChild:
        return SparkChild(self.log)

    @task_entry
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow passes it by name
        """Validate, record the verdict, and return its summary."""
        from lockgate.operators.audits.staged_rows import staged_rows

        check_choice("engine", self.engine, get_args(Engine))
        check_choice("format", self.format, FORMATS)
        suspend_timeout_s = seconds_or_none("suspend_timeout_s", self.suspend_timeout_s)
        job = attach_open(self.job)
        with suspended_after(job, suspend_timeout_s, self.log):
            expected = job.expected()
            if self.engine == "statistics" or (expected is not None and expected.staging is None):
                chosen, verdict, files = self._by_statistics(job)
            else:
                staged = staged_rows(job)
                chosen, verdict, files = staged.chosen, self._validate(job, staged), len(staged.paths)
            summary = _summary(verdict, files)
            recorded = job.record_audit(
                chosen=chosen,
                passed=verdict["passed"],
                suite=verdict["suite"],
                summary=summary | failing(verdict["document"], RECORDED),
            )
        self._show(job, verdict)
        if not verdict["passed"]:
            raise AuditFailedError(
                f"job {job.job_id}: the staged data fail suite {verdict['suite']!r}: "
                f"{'; '.join(verdict['failures'][:3])}; the verdict is recorded and nothing is visible; "
                "correct the data and clear the run from its set-up task"
            )
        if not recorded.passed:
            raise AuditFailedError(
                f"job {job.job_id}: these data failed suite {recorded.suite!r} in an earlier audit, and a "
                "verdict is final; nothing is visible; clear the run from its set-up task"
            )
        self.log.info("audit passed: %s", summary)
        return summary

    def on_kill(self) -> None:
        """End the Spark child with the task."""
        self._child.kill()

    def _by_statistics(self, job: Job) -> tuple[str, Validation, int]:
        """Return the digest of the pending sets, the answers of their statistics, and the number of files."""
        from lockgate.operators.audits.column_statistics import validate_statistics
        from lockgate.storage_core.commit.records.shards import total_rows

        chosen, sets = job.chosen_pending_sets()
        if self.suite is not None and self.suite != "":
            verdict = validate_statistics(self.suite, sets)
        elif self.engine == "statistics":
            raise InvalidInputError("AuditOperator: engine 'statistics' needs a suite; nothing was read")
        else:
            verdict = _counted(total_rows(file.rows for one in sets for file in one.files))
        return chosen, verdict, sum(len(one.files) for one in sets)

    def _show(self, job: Job, verdict: Validation) -> None:
        if failed := failed_rows(verdict["document"]):
            show = self.log.error if verdict["failures"] else self.log.warning
            show("expectations that the data do not meet:\n%s", log_table(COLUMNS, failed, most_rows=20))
        self.log.info("the audit on its job's page: %s#audit", job_address(job.destination, job.job_id))
        if self.data_docs and verdict["document"]["results"]:
            file = Path(self.data_docs, f"{job.job_id}.html")
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(
                    page(verdict["document"], title=f"Audit of {job.job_id} at {job.destination}")
                )
            except OSError as error:
                self.log.warning("the page %s was not written: %s; the verdict is recorded", file, error)

    def _validate(self, job: Job, staged: StagedRows) -> Validation:
        if self.suite is None or self.suite == "":
            return _counted(staged.rows)
        try:
            verdict = (
                self._in_spark(staged, self.suite)
                if self.engine == "spark"
                else self._in_pandas(staged, self.suite)
            )
        except Exception:
            staged.check_read(job)  # other bytes explain an error
            raise
        staged.check_read(job)
        if staged.rows is not None and verdict["rows"] != staged.rows:
            verdict["passed"] = False
            verdict["failures"].append(
                f"rows: {verdict['rows']} staged, {staged.rows} committed by the workers"
            )
        return verdict

    def _in_pandas(self, staged: StagedRows, suite: Suite) -> Validation:
        from lockgate.operators.audits.staged_rows import validate_in_pandas

        return validate_in_pandas(staged, suite, format=self.format, columns=self.columns)

    def _in_spark(self, staged: StagedRows, suite: Suite) -> Validation:
        from lockgate.operators.connections import spark_place

        place = spark_place(self.master, self.spark_conn_id, None)
        validation: Validation = self._child.run(
            SparkWork(
                run="lockgate.operators.audits.staged_rows:validate_in_spark",
                arguments={
                    "root": str(staged.root),
                    "files": staged.files(),
                    "suite": suite,
                    "format": self.format,
                    "options": dict(self.options or {}),
                },
                master=place.master,
                app_name=f"lockgate audit {self.task_id}",
                config={**place.config, **(self.spark_config or {})},
                needs=frozenset() if self.restricted else ALL,  # the staged files are on this machine
            )
        )
        return validation


def _counted(rows: int | None) -> Validation:
    """Return the verdict of an audit without a suite: sizes and counts are already checked."""
    return Validation(
        passed=True,
        suite="sizes and counts",
        expectations=0,
        failures=[],
        warnings=[],
        rows=rows or 0,
        document={"results": []},
    )


def _summary(verdict: Validation, files: int) -> dict[str, str | int | float | bool | None]:
    return {
        "suite": verdict["suite"],
        "passed": verdict["passed"],
        "rows": verdict["rows"],
        "files": files,
        "expectations": verdict["expectations"],
        "failed": len(verdict["failures"]),
        "warned": len(verdict["warnings"]),
        **{f"failure_{number}": text for number, text in enumerate(verdict["failures"][:RECORDED], start=1)},
        **{f"warning_{number}": text for number, text in enumerate(verdict["warnings"][:RECORDED], start=1)},
    }
