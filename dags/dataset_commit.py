"""Write a data set with Spark so that it appears all at once, or not at all."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, AssetAlias, Param

from lockgate.operators import (
    AuditOperator,
    BlobUploadOperator,
    JobAbortOperator,
    JobCommitOperator,
    JobSetupOperator,
    SparkWriteOperator,
    TaskCommitOperator,
)

# Required parameters have no section, because Airflow's form shows sections collapsed.
# Optional parameters may be null: the form treats an empty text as missing.
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
        description="s3://bucket/prefix, file:///directory or a path that the job writes.",
    ),
    "mode": Param(
        "append",
        type="string",
        enum=["append", "replace", "fail"],
        values_display={
            "append": "append: keep existing data",
            "replace": "replace: remove existing data when the new data are visible",
            "fail": "fail: the destination must be empty",
        },
        title="Existing data",
    ),
    "description": Param(
        None,
        type=["null", "string"],
        title="Description",
        description="Stored in the job's record. Empty: the name of the DAG run.",
    ),
    "columns": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Columns",
        description="Spark SQL expressions, one per line: cast(delay as int) as delay. Empty: all columns.",
        section="Rows and columns",
    ),
    "where": Param(
        None,
        type=["null", "string"],
        title="Rows",
        description="Spark SQL condition. Empty: all rows.",
        section="Rows and columns",
    ),
    "libraries": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        title="Libraries",
        description="Wheels, zips, .py files and jars for this run's Spark, one path per line.",
        section="Rows and columns",
    ),
    "transform": Param(
        None,
        type=["null", "string"],
        title="Transformation",
        description="package.module:function of the libraries; it takes a DataFrame and returns one.",
        section="Rows and columns",
    ),
    "source_options": Param(
        None,
        type=["null", "object"],
        title="Options of the source",
        description='Options of Spark\'s reader, such as {"header": "true", "nullValue": "NA"} for CSV.',
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
        description="One per line; they become folders such as month=1.",
        section="Files",
    ),
    "tables": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        examples=["delta", "iceberg"],
        title="Tables",
        description="Show each commit also as a version of these tables. Only Parquet files.",
        section="Files",
    ),
    "scope": Param(
        "destination",
        type="string",
        enum=["destination", "partitions"],
        values_display={
            "destination": "the whole destination",
            "partitions": "only the partitions that receive data",
        },
        title="What is replaced, or must be empty",
        section="Files",
    ),
    "via": Param(
        "auto",
        type="string",
        enum=["auto", "spark", "staged"],
        values_display={
            "auto": "auto: straight to S3 if that is possible, and the audit needs no rows",
            "spark": "spark: straight into uploads on S3; no shared directory; audits by statistics",
            "staged": "staged: files in a directory that workers see; audits of the rows",
        },
        title="Way of the rows",
        section="Files",
    ),
    "task_mib": Param(
        256,
        type="integer",
        minimum=1,
        title="MiB per task",
        description="Approximate size of one task commit.",
        section="Files",
    ),
    "suite": Param(
        None,
        type=["null", "object"],
        title="Audit",
        description="A Great Expectations suite, suite.to_json_dict(). Empty: only sizes and row counts.",
        section="Audit and commit",
    ),
    "complete_by": Param(
        "auto",
        type="string",
        enum=["auto", "threads", "workers"],
        title="What completes the uploads",
        description="Threads of the commit task, Celery workers, or auto: workers if a broker is configured "
        "and the job has many thousands of files.",
        section="Audit and commit",
    ),
    "master": Param(
        None,
        type=["null", "string"],
        title="Spark master",
        description="Such as local[4] or spark://host:7077. Empty: all cores of the machine.",
        section="Advanced",
    ),
    "driver_memory": Param(
        None,
        type=["null", "string"],
        title="Memory of Spark's driver",
        description="Such as 4g. Empty: Spark's default, 1g.",
        section="Advanced",
    ),
    "spark_config": Param(
        None,
        type=["null", "object"],
        title="Settings of Spark",
        description='Such as {"spark.sql.shuffle.partitions": "8"}.',
        section="Advanced",
    ),
}

with DAG(
    "dataset_commit",
    description=__doc__,
    schedule=None,
    # Every step is safe to repeat; an error that a retry cannot change fails the task at once.
    # The form's values are restricted to what the settings LOCKGATE_TRIGGER_… allow.
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30), "restricted": True},
    params=FORM,
    tags=["lockgate"],
    doc_md="""
Writes **source** to **destination** so that it appears all at once, or not at all: Spark writes the files
straight into uploads that stay open, or stages them for Celery workers to upload; an audit checks them, and
one decision makes them visible.

If a run fails before the decision, `abort` removes everything that it wrote. If it is killed after the
decision, `job_recovery` finishes it. Clearing a finished run from its first task on computes it again and
replaces what it published. The **libraries** belong to the run and are deleted at its end.
""",
) as dag:
    # A set-up task, so that Airflow clears it with any other task: an ended job's libraries are deleted.
    libraries = BlobUploadOperator(task_id="libraries", files=dag.param("libraries")).as_setup()
    setup = JobSetupOperator(
        task_id="setup",
        artefacts=libraries.output,
        destination=dag.param("destination"),
        mode=dag.param("mode"),
        scope=dag.param("scope"),
        description=dag.param("description"),
        tables=dag.param("tables"),
        audit=True,
    )
    write = SparkWriteOperator(
        task_id="write",
        job=setup.output,
        python_callable="lockgate.operators.spark_process.frames:read_files",
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
        via=dag.param("via"),
        suite="{{ params.suite or {'name': 'sizes and counts', 'expectations': []} }}",
        task_mib=dag.param("task_mib"),
        master=dag.param("master"),
        driver_memory=dag.param("driver_memory"),
        spark_config=dag.param("spark_config"),
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
