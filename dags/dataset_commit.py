"""The main job: Spark stages data that nobody sees, workers commit its tasks, an audit opens the gate."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, AssetAlias, Param

from lockgate.operators.audit import AuditOperator
from lockgate.operators.blobs import BlobUploadOperator
from lockgate.operators.jobs import JobAbortOperator, JobCommitOperator, JobSetupOperator
from lockgate.operators.spark import SparkWriteOperator
from lockgate.operators.tasks import TaskCommitOperator

# What a run must be told has no section: Airflow shows those fields at once, and sections only when asked.
# What may be left empty may be null: to the form, an empty text is a missing one.
FORM = {
    "source": Param(
        type="string",
        minLength=1,
        title="Source",
        description="Path or URL of a file or directory that Spark reads.",
    ),
    "source_format": Param(
        "parquet",
        type="string",
        enum=["parquet", "orc", "json", "csv"],
        title="Format of the source",
    ),
    "destination": Param(
        type="string",
        minLength=1,
        title="Destination",
        description="s3://bucket/prefix, file:///directory or a path, which the job writes all at once.",
    ),
    "mode": Param(
        "append",
        type="string",
        enum=["append", "replace", "fail"],
        values_display={
            "append": "append: keep what is there",
            "replace": "replace: take away what is there, when the new data are visible",
            "fail": "fail: only into an empty destination",
        },
        title="Data already there",
    ),
    "description": Param(
        None,
        type=["null", "string"],
        title="Description",
        description="Kept in the job's record; none: names the DAG run.",
    ),
    "columns": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Columns",
        description="Spark SQL expressions, one a line, such as cast(delay as int) as delay; none: all.",
        section="Rows and columns",
    ),
    "where": Param(
        None,
        type=["null", "string"],
        title="Rows",
        description="Spark SQL condition; none: all rows.",
        section="Rows and columns",
    ),
    "libraries": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Libraries",
        description="Wheels, zips, .py files and jars, one path a line, which this run's Spark can import.",
        section="Rows and columns",
    ),
    "transform": Param(
        None,
        type=["null", "string"],
        title="Transformation",
        description="package.module:function, of the libraries, that takes a DataFrame and returns one.",
        section="Rows and columns",
    ),
    "source_options": Param(
        None,
        type=["null", "object"],
        title="Options of the source",
        description='Of Spark\'s reader, for example {"header": "true", "nullValue": "NA"} for CSV.',
        section="Rows and columns",
    ),
    "format": Param(
        "parquet",
        type="string",
        enum=["parquet", "orc", "json", "csv"],
        title="Format of the files",
        section="Files",
    ),
    "partition_by": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Partition columns",
        description="One a line; they become folders such as month=1.",
        section="Files",
    ),
    "scope": Param(
        "destination",
        type="string",
        enum=["destination", "partitions"],
        values_display={
            "destination": "all of the destination",
            "partitions": "only the partitions that receive data",
        },
        title="What is replaced, or has to be empty",
        section="Files",
    ),
    "task_mib": Param(
        256,
        type="integer",
        minimum=1,
        title="MiB a task",
        description="Workers commit this much at a time.",
        section="Files",
    ),
    "suite": Param(
        None,
        type=["null", "object"],
        title="Audit",
        description="A Great Expectations suite, suite.to_json_dict(); none: sizes and counts.",
        section="Gate",
    ),
    "complete_by": Param(
        "threads",
        type="string",
        enum=["threads", "workers"],
        title="Who completes the uploads",
        description="Threads of the commit task, or Celery workers: for many thousands of files.",
        section="Gate",
    ),
}

with DAG(
    "dataset_commit",
    description=__doc__,
    schedule=None,
    # Every step may be repeated; what a retry cannot change fails at once.
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params=FORM,
    tags=["lockgate"],
    doc_md="""
Writes **source** to **destination** so that it appears all at once, or not at all.

A run that fails before the decision leaves nothing: `abort` takes it back. A run that is killed after the
decision is finished by `job_recovery`. Clearing a finished run from its first task on computes it again, and
replaces what it had published. The **libraries** are the run's own, and are deleted with its end.
""",
) as dag:
    # A set-up, too: whatever is cleared, Airflow clears it along, for an ended job's libraries are gone.
    libraries = BlobUploadOperator(task_id="libraries", files=dag.param("libraries")).as_setup()
    setup = JobSetupOperator(
        task_id="setup",
        artefacts=libraries.output,
        destination=dag.param("destination"),
        mode=dag.param("mode"),
        scope=dag.param("scope"),
        description=dag.param("description"),
        audit=True,
    )
    write = SparkWriteOperator(
        task_id="write",
        job=setup.output,
        python_callable="lockgate.operators.dag_run.sources:read_files",
        op_kwargs={
            "source": dag.param("source"),
            "source_format": dag.param("source_format"),
            "source_options": dag.param("source_options"),
            "columns": dag.param("columns"),
            "where": dag.param("where"),
            "transform": dag.param("transform"),
        },
        format=dag.param("format"),
        partition_by=dag.param("partition_by"),
        task_mib=dag.param("task_mib"),
    )
    tasks = TaskCommitOperator.partial(task_id="commit_tasks", job=write.output["job"]).expand(
        task_ids=write.output
    )
    audit = AuditOperator(
        task_id="audit", job=write.output["job"], suite=dag.param("suite"), format=dag.param("format")
    )
    commit = JobCommitOperator(
        task_id="commit",
        job=write.output["job"],
        complete_by=dag.param("complete_by"),
        outlets=[AssetAlias("lockgate_dataset")],
    )
    abort = JobAbortOperator(task_id="abort", job=setup.output).as_teardown(setups=setup)

    libraries >> setup >> write >> tasks >> audit >> commit >> abort
