"""Fetch Spark's jars for S3: `python -m scripts.s3a_jars FOLDER`.

These are hadoop-aws of Spark's Hadoop version with its dependencies, for `LOCKGATE_SPARK_S3_JARS`, and
spark-hadoop-cloud, by which Spark uses S3A's committers, for the benchmarks. All are then in `FOLDER/jars`.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException

from lockgate.storage_core.spark.s3a_fetch import fetch_s3a_jars
from lockgate.storage_core.spark.session import spark_session

CLOUD: Final = "org.apache.spark:spark-hadoop-cloud_2.13:4.1.1"
"""The newest one in Maven Central; its two classes work with the Spark of this project."""


def fetch(folder: Path) -> None:
    """Fetch the jars, except those that are there; a folder `jars` has all of hadoop-aws.

    Raises:
        SystemExit: They could not be fetched.
    """
    fetched = folder / "new"
    if not (folder / "jars").exists():
        _in_new_process(fetch_hadoop_aws, fetched)
        (fetched / "jars").rename(folder / "jars")
        shutil.rmtree(fetched)
    if not list((folder / "jars").glob("*spark-hadoop-cloud*")):
        _in_new_process(fetch_cloud, fetched, folder / "jars")


def _in_new_process(call: Callable[..., None], *arguments: Path) -> None:
    """Call in a new process: the JVM of a process keeps the jars of its first session."""
    process = multiprocessing.get_context("spawn").Process(target=call, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit("the jars could not be fetched; the reason is above")


def fetch_hadoop_aws(fetched: Path) -> None:
    """Fetch hadoop-aws with its dependencies."""
    fetch_s3a_jars(fetched, print)


def fetch_cloud(fetched: Path, jars: Path) -> None:
    """Fetch spark-hadoop-cloud alone: it depends on the SDKs of three clouds."""
    spark = spark_session(
        "fetch cloud", master="local[1]", config={"spark.jars.ivy": str(fetched.absolute())}
    )
    try:
        spark.sql(f"ADD JAR 'ivy://{CLOUD}?transitive=false'")
    except PySparkException as error:
        sys.stderr.write(f"{CLOUD} could not be fetched; benchmarks will skip S3A's committers: {error}\n")
    finally:
        spark.stop()
    for jar in (fetched / "jars").glob("*spark-hadoop-cloud*"):
        jar.rename(jars / jar.name)
    shutil.rmtree(fetched, ignore_errors=True)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
