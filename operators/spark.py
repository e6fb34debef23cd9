"""SparkWriteOperator: write a data set with Spark, invisible to readers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lockgate.operators.audits.suites import Suite
from lockgate.operators.dag_run.job_handle import JobHandle, attach_open, handle_of, suspend, suspended_after
from lockgate.operators.dag_run.lineage import lineage_of_write, parquet_columns
from lockgate.operators.dag_run.log_tables import LoggedProgress, log_table
from lockgate.operators.dag_run.operator import LockgateOperator, task_entry, templated
from lockgate.operators.dag_run.page_links import job_address
from lockgate.operators.dag_run.parameters import (
    check_bool,
    check_choice,
    filled_in,
    from_template,
    positive,
    seconds_or_none,
)
from lockgate.operators.spark_process.process import ALL, Part, SparkChild, SparkWork
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import new_job_attempt_id
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from lockgate.storage_core.commit.job import Job
    from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask

MIB: Final = 1024 * 1024
WAYS: Final = ("auto", "spark", "staged")
PACKAGES: Final = "spark.jars.packages"


@templated
class SparkWriteOperator(LockgateOperator):
    """Runs a function in Spark and writes the DataFrame that it returns, as the job's task list.

    Spark runs in a child process with a clean JVM that ends with the task. Every run of this task is a new
    job attempt, because a new plan may partition differently. By the way `staged`, the listing of staged
    files and sizes is frozen and grouped into tasks for `TaskCommitOperator`. By the way `spark`, on S3,
    Spark's own writer streams into uploads that stay open: executors and workers share no directory, and
    nothing is left for `TaskCommitOperator` to do.

    Args:
        job: Handle from the set-up: `setup.output`.
        python_callable: `(spark, **op_kwargs) -> DataFrame`: a function, or `package.module:name`.
        op_kwargs: Keyword arguments of the function. A `restricted` operator adds `allowed`: the `AllowLists`
            with which the function must check them.
        format: Format of the files: `parquet`, `orc`, `json` or `csv`.
        partition_by: Columns that become folders, in Hive layout.
        options: Options of Spark's writer for this format.
        master: Spark master URL; None: that of the Spark connection, else all cores of this machine.
        spark_config: Spark settings; they override those of the connection.
        packages: Maven coordinates of packages that the session gets: `group:artifact:version`.
        driver_memory: Memory of the driver, such as `4g`.
        spark_conn_id: Airflow connection of type `spark`: master, deploy mode and settings.
        spark_connect_id: Airflow connection of type `spark_connect`: a server, in place of a master.
        reads_s3: Give Spark an S3 file system for `s3://` and `s3a://`; None: if an argument of the function
            begins so. A Spark Connect server has its own.
        artefacts: Output of `BlobUploadOperator`, whose libraries the driver and executors can import; None:
            the artefacts that the job was set up with.
        via: `spark`, `staged`, or `auto`: `spark` if the destination is on S3, hadoop-aws needs no fetching,
            and the audit can do without the rows.
        suite: The suite of the job's `AuditOperator`. What `spark` writes is audited by the statistics of its
            Parquet files; `auto` takes `staged` if they cannot answer the suite, or if the job needs an audit
            and no suite is given.
        task_mib: Approximate MiB of staged files in one task; a larger file is one task.
        chunks: Maximum number of chunks of task ids.
        suspend_timeout_s: How long recovery leaves the job alone, from the start of this task and again from
            its end; None: `LOCKGATE_SUSPEND_TIMEOUT_S`. Set it longer than Spark may take.

    Returns:
        The ids of these tasks in chunks: `TaskCommitOperator.partial(...).expand(task_ids=write.output)`. The
        XCom value `job` is the handle of the new job attempt: `write.output["job"]`.
    """

    ui_color = "#fef7e0"

    def __init__(
        self,
        *,
        job: JobHandle | Any,
        python_callable: str | Callable[..., Any],
        op_kwargs: Mapping[str, Any] | None = None,
        format: str = "parquet",  # noqa: A002 - as Spark calls it
        partition_by: Sequence[str] | None = None,
        options: Mapping[str, str] | None = None,
        master: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        packages: Sequence[str] | None = None,
        driver_memory: str | None = None,
        spark_conn_id: str | None = None,
        spark_connect_id: str | None = None,
        reads_s3: bool | None = None,
        artefacts: Mapping[str, Any] | Any = None,
        via: str = "auto",
        suite: Suite | None = None,
        task_mib: int = 256,
        chunks: int = 4,
        suspend_timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.python_callable = python_callable
        self.op_kwargs = op_kwargs
        self.format = format
        self.partition_by = partition_by
        self.options = options
        self.master = master
        self.spark_config = spark_config
        self.packages = packages
        self.driver_memory = driver_memory
        self.spark_conn_id = spark_conn_id
        self.spark_connect_id = spark_connect_id
        self.reads_s3 = reads_s3
        self.artefacts = artefacts
        self.via = via
        self.suite = suite
        self.task_mib = task_mib
        self.chunks = chunks
        self.suspend_timeout_s = suspend_timeout_s
        self._staged_in: Path | None = None

    @cached_property
    def _child(self) -> SparkChild:
        return SparkChild(self.log)

    def form_values(self) -> dict[str, Any]:
        """Return the parameters to check, with the suite that a template has made text."""
        return {**super().form_values(), "suite": from_template(self.suite)}

    @task_entry
    def execute(self, context: Context) -> list[list[str]]:
        """Write the DataFrame, freeze its files as the job's task list, and return the task ids in chunks."""
        from lockgate.storage_core.commit.records.expected_tasks import StagedFile
        from lockgate.storage_core.commit.staged_files import group_into_tasks

        target_bytes, chunks = positive("task_mib", self.task_mib) * MIB, positive("chunks", self.chunks)
        suspend_timeout_s = seconds_or_none("suspend_timeout_s", self.suspend_timeout_s)
        check_choice("via", self.via, WAYS)
        job = attach_open(self.job, job_attempt=new_job_attempt_id())
        obstacles = self._obstacles(job) if self.via != "staged" else [""]
        if obstacles and self.via == "spark":
            raise InvalidInputError(
                f"via='spark' does not go with {', nor with '.join(obstacles)}; nothing was written; use "
                "via='staged', with a directory that workers see"
            )
        suspend(job, suspend_timeout_s, self.log)
        with suspended_after(job, suspend_timeout_s, self.log):
            # A new directory, so that files of an earlier run that was killed are never included.
            staging = Path(job.staging_dir, job.job_attempt)
            with tempfile.TemporaryDirectory(prefix="lockgate-spark-") as folder:
                spool = Path(folder, "files")
                found = self._write(job, staging, None if obstacles else spool)
                streamed = self._adopted(job, spool, found) if isinstance(found, int) else []
            context["ti"].xcom_push("job", handle_of(job))
            self.log.info("its page: %s", job_address(job.destination, job.job_id))
            if isinstance(found, int):
                job.expect(streamed)
                self.log.info(
                    "job %s, attempt %s: Spark wrote its files into open uploads (via 'spark'), in %d tasks",
                    job.job_id,
                    job.job_attempt,
                    len(streamed),
                )
                return chunked([], chunks)
            self._staged_in = staging
            tasks = group_into_tasks([StagedFile(*file) for file in found], target_bytes=target_bytes)
            job.expect(tasks, staging=str(staging))
        shown = [(task.task_id, len(task.files), sum(file.size for file in task.files)) for task in tasks]
        table = log_table(("task", "files", "bytes"), shown)
        self.log.info(
            "job %s, attempt %s: staged %d tasks\n%s", job.job_id, job.job_attempt, len(tasks), table
        )
        return chunked([task.task_id for task in tasks], chunks)

    def _obstacles(self, job: Job) -> list[str]:
        """Return what the way `spark` does not go with, as far as it is known before Spark has started."""
        from lockgate.operators.connections import spark_place

        place = spark_place(self.master, self.spark_conn_id, self.spark_connect_id)
        partition_by = filled_in(self.partition_by)
        found = {
            "a destination on a file system": not job.destination.startswith("s3://"),
            "a Spark Connect server, whose uploads this task cannot list": place.remote is not None,
            "unique_filenames=False": not job.spec.unique_filenames,
            "hadoop-aws that is not there yet (`lockgate spark-jars fetch`)": self.via == "auto"
            and not self._reads_s3()
            and not _has_hadoop_aws(),
        }
        obstacles = [what for what, holds in found.items() if holds]
        suite = from_template(self.suite)
        if obstacles or not (job.spec.audit or suite):
            return obstacles
        if not suite:
            return ["an audit whose suite is not given (suite=)"] if self.via == "auto" else []
        if self.format != "parquet":
            return [f"a suite on {self.format}, which has no statistics"]
        from lockgate.operators.audits.column_statistics import unanswerable

        if isinstance(suite, Mapping) and not suite.get("expectations"):
            return []
        return [
            f"an audit of the rows, which an open upload does not show ({reason})"
            for reason in unanswerable(suite, partition_by)
        ]

    def _adopted(self, job: Job, spool: Path, part_bytes: int) -> list[ExpectedTask]:
        """Commit the tasks of the uploads; the input digest of an attempt is its id, so only these count."""
        from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask
        from lockgate.storage_core.spark.adopted_files import AdoptedFiles

        files = AdoptedFiles(job, spool, part_bytes, progress=LoggedProgress(self.log))
        return [
            ExpectedTask(task_id=task, input_digest=attempt)
            for task, attempt in sorted(files.commit().items())
        ]

    def _write(self, job: Job, staging: Path, spool: Path | None) -> list[Any] | int:
        """Run Spark; return the staged files, or bytes of the parts of uploads, which `spool` lists."""
        from lockgate.operators.connections import child_settings, spark_place

        artefacts = from_template(self.artefacts) or (
            None if job.spec.artefacts is None else job.spec.artefacts.handle()
        )
        reads_s3 = self._reads_s3() or spool is not None
        needs = self._needs(reads_s3=reads_s3) if self.restricted and not artefacts else ALL
        place = spark_place(self.master, self.spark_conn_id, self.spark_connect_id)
        arguments: dict[str, Any] = {
            "python_callable": self.python_callable,
            "op_kwargs": self._op_kwargs(),
            "staging": str(staging),
            "format": self.format,
            "partition_by": filled_in(self.partition_by),
            "options": writer_options(self.format, self.options or {}),
        }
        if spool is not None:
            names = {"job_id": job.job_id, "short_id": job.short_id, "job_attempt": job.job_attempt}
            arguments["uploads"] = {"destination": job.destination, "names": names, "spool": str(spool)}
            arguments["staging"] = str(staging) if self.via == "auto" else None
        found: list[Any] | int = self._child.run(
            SparkWork(
                run="lockgate.operators.spark_process.frames:write_frame",
                arguments=arguments,
                master=place.master,
                remote=place.remote,
                reads_s3=reads_s3,
                app_name=f"lockgate {self.dag_id}.{self.task_id}",
                config=self._config(place.config),
                artefacts=artefacts,
                settings=child_settings(needs),
                needs=needs,
            )
        )
        return found

    def _config(self, of_connection: Mapping[str, str]) -> dict[str, str]:
        memory = {"spark.driver.memory": self.driver_memory} if self.driver_memory else {}
        config = {**of_connection, **memory, **(self.spark_config or {})}
        if packages := filled_in(self.packages):
            config[PACKAGES] = ",".join([*packages, *filter(None, [config.get(PACKAGES)])])
        return config

    def _reads_s3(self) -> bool:
        if self.reads_s3 is not None:
            return check_bool("reads_s3", self.reads_s3)
        return any(
            isinstance(value, str) and value.startswith(("s3://", "s3a://"))
            for value in (self.op_kwargs or {}).values()
        )

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the sources and the destination, for the OpenLineage provider."""
        return lineage_of_write(self.job, op_kwargs=self.op_kwargs or {}, inlets=self.inlets)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002 - its
        """Return the sources, and the destination with the columns of the staged files."""
        staged = self._staged_in if self.format == "parquet" else None
        return lineage_of_write(
            self.job,
            op_kwargs=self.op_kwargs or {},
            inlets=self.inlets,
            columns=() if staged is None else parquet_columns(staged, filled_in(self.partition_by)),
        )

    def _op_kwargs(self) -> dict[str, Any]:
        from lockgate.operators.trigger_rights import allow_lists

        op_kwargs = dict(self.op_kwargs or {})
        return {**op_kwargs, "allowed": allow_lists()} if self.restricted else op_kwargs

    def _needs(self, *, reads_s3: bool) -> frozenset[Part]:
        """Return what a restricted function needs without libraries, whose cache may need the journal."""
        return frozenset({"s3"} if reads_s3 else ())

    def on_kill(self) -> None:
        """End the Spark child with the task."""
        self._child.kill()


def _has_hadoop_aws() -> bool:
    """Return whether a session gets hadoop-aws without fetching it."""
    from lockgate.storage_core.spark.s3a_fetch import is_fetched, ivy_folder

    return load_settings().spark_s3_jars is not None or is_fetched(ivy_folder())


def writer_options(format: str, options: Mapping[str, str]) -> dict[str, str]:  # noqa: A002 - as Spark calls it
    """Return the options of Spark's writer; by default CSV gets a header, which audits need."""
    return {**({"header": "true"} if format == "csv" else {}), **options}


def chunked(task_ids: Sequence[str], chunks: int) -> list[list[str]]:
    """Split task ids evenly into at most `chunks` chunks, and at least one, perhaps empty.

    Airflow skips all tasks after a mapping over an empty list, but a job without rows must be committed, too.
    """
    size = max(1, -(-len(task_ids) // max(1, chunks)))
    return [list(task_ids[start : start + size]) for start in range(0, len(task_ids), size)] or [[]]
