"""Write a data frame with Spark's own writer into pending files, by a commit protocol in the JVM.

The jar of this package has the protocol. On S3, Spark's tasks stream into uploads that S3A leaves open; on a
file system they write hidden files. The driver lists the files of the tasks that Spark accepts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.ids import AttemptId, TaskId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.adopted_files import AdoptedFiles, new_directory
from lockgate.storage_core.spark.s3a import s3a_config
from lockgate.storage_core.spark.schema.columns import partition_columns

JAR: Final = Path(__file__).with_name("pending_files.jar")
PROTOCOL: Final = "lockgate.PendingFiles"


@dataclass(frozen=True)
class JobNames:
    """Names of a job in Spark's settings and in the names of its files."""

    job_id: str
    short_id: str
    job_attempt: str

    @classmethod
    def of(cls, job: Job) -> JobNames:
        """Return those of a job attempt."""
        return cls(job.job_id, job.short_id, job.job_attempt)


def obstacle(spark: SparkSession, *, s3: bool) -> str:
    """Return why this session's own writers cannot write pending files; empty if they can.

    Args:
        spark: The session.
        s3: Whether the destination is on S3.
    """
    if getattr(spark, "_jsparkSession", None) is None:
        return "a Spark Connect session, whose driver's files and memory this process cannot read"
    lacks = str(_new(spark, "Fit").lacks(s3))
    if s3 and "hadoop" in lacks:
        return "a session without hadoop-aws of Spark's Hadoop version (spark.jars.packages)"
    return lacks and f"a Spark that the commit protocol of this Lockgate does not fit ({lacks})"


def write_pending(
    df: DataFrame,
    names: JobNames,
    root: str,
    spool: Path,
    *,
    format: str = "parquet",  # noqa: A002 - Spark's own word
    partition_by: Sequence[str] = (),
    options: Mapping[str, str | int | bool] | None = None,
    settings: Settings,
) -> None:
    """Write a data frame, and list the pending files.

    Args:
        df: The data frame.
        names: Names of the job.
        root: URL of the destination on S3; on a file system, of a hidden directory for the files.
        spool: File that gets a line for each pending file; see `adopted_files`.
        format: Format of the files.
        partition_by: Columns that become folders.
        options: Options of Spark's writer for that format.
        settings: Settings, with S3's endpoint, credentials and the size of parts.

    Raises:
        PySparkException: Spark or a task failed.
    """
    given = {
        "lockgate.job": names.job_id,
        "lockgate.short.id": names.short_id,
        "lockgate.job.attempt": names.job_attempt[:8],
        "lockgate.spool": str(spool),
        **(_s3_settings(settings, root) if root.startswith("s3:") else {}),
    }
    texts = {name: _text(value) for name, value in (options or {}).items()}
    folders = list(partition_columns(df.schema, partition_by))
    _new(df.sparkSession, "Writer").write(df._jdf, given, format, texts, folders, root)  # noqa: SLF001


def _s3_settings(settings: Settings, root: str) -> dict[str, str]:
    bucket = root.removeprefix("s3://").partition("/")[0]
    part_bytes = str(settings.part_bytes)
    storage = {
        "fs.s3a.create.storage.class": settings.s3_storage_class,
        "fs.s3a.encryption.algorithm": _ENCRYPTION.get(
            settings.s3_sse or ("aws:kms" if settings.s3_sse_kms_key_id else "")
        ),
        "fs.s3a.encryption.key": settings.s3_sse_kms_key_id,
        "fs.s3a.acl.default": "".join(map(str.capitalize, (settings.s3_acl or "").split("-"))),
    }
    return {
        **s3a_config(settings),
        "fs.s3a.multipart.size": part_bytes,
        f"fs.s3a.bucket.{bucket}.multipart.size": part_bytes,  # one of the session's would count before it
        "fs.s3a.fast.upload.buffer": "bytebuffer",
        **{name: value for name, value in storage.items() if value},
    }


_ENCRYPTION: Final = {"AES256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _new(spark: SparkSession, name: str) -> Any:
    """Return an object of a class of the jar, which all sessions of the driver share."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public name for it
    loader = spark._jsparkSession.sharedState().jarClassLoader()  # noqa: SLF001
    try:
        found = loader.loadClass(f"{PROTOCOL}${name}")
    except (Py4JError, PySparkException):
        spark.sparkContext._jsc.addJar(JAR.as_uri())  # noqa: SLF001 - for the executors
        loader.addURL(jvm.java.io.File(str(JAR)).toURI().toURL())
        found = loader.loadClass(f"{PROTOCOL}${name}")
    return found.newInstance()


def write_and_adopt(
    df: DataFrame,
    job: Job,
    *,
    streams: bool,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str | int | bool] | None = None,
    settings: Settings,
    progress: Progress = no_progress,
) -> dict[TaskId, AttemptId]:
    """Write a data frame as Parquet with Spark's own writer, and return the attempts to commit the job with.

    Args:
        df: The data frame.
        job: The job.
        streams: Whether Spark streams into uploads on S3; otherwise its files lie in a directory first.
        partition_by: Columns that become folders.
        options: Options of Spark's writer.
        settings: Settings, with S3's endpoint, credentials and the size of parts.
        progress: Called with the number of files so far.

    Raises:
        PySparkException: Spark or a task failed; what it left is removed at the job's end.
        LockgateError: As `AdoptedFiles.commit` and `new_directory`.
    """
    directory = None if streams else new_directory(job)
    with tempfile.TemporaryDirectory(prefix="lockgate-spark-") as folder:
        spool = Path(folder, "files")
        root = (
            job.destination if directory is None else f"file://{directory}"
        )  # not encoded: Hadoop decodes nothing
        with AdoptedFiles(job, spool, settings.part_bytes, directory, progress) as files:
            write_pending(
                df,
                JobNames.of(job),
                root,
                spool,
                partition_by=partition_by,
                options=options,
                settings=settings,
            )
            return files.commit()
