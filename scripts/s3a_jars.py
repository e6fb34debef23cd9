"""Fetch Spark's jars for S3: `python -m scripts.s3a_jars FOLDER`.

These are hadoop-aws of Spark's Hadoop version with its dependencies, for `LOCKGATE_SPARK_S3_JARS`, and
spark-hadoop-cloud, by which Spark uses S3A's committers, for the benchmarks. All are then in `FOLDER/jars`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException

from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.s3a import s3a_jars
from lockgate.storage_core.spark.session import spark_session

CLOUD: Final = "org.apache.spark:spark-hadoop-cloud_2.13:4.1.1"
"""The newest one in Maven Central; its two classes work with the Spark of this project."""


def fetch(folder: Path) -> None:
    """Fetch the jars, except those that are there; a folder `jars` has all of hadoop-aws."""
    fetched = folder / "new"
    if not (folder / "jars").exists():
        config = {**s3a_jars(Settings(spark_s3_jars=None)), "spark.jars.ivy": str(fetched.absolute())}
        spark_session("fetch hadoop-aws", master="local[1]", config=config).stop()
        (fetched / "jars").rename(folder / "jars")
        shutil.rmtree(fetched)
    if not list((folder / "jars").glob("*spark-hadoop-cloud*")):
        fetch_cloud(fetched, folder / "jars")


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
