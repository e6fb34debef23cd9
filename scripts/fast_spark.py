"""Prepare an installation of Spark that starts in less CPU time, for the tests.

    python scripts/fast_spark.py FOLDER

`FOLDER/home` links to the installed Spark, without the archive `pyspark.zip`: Spark's Python processes then
import the installed modules, where each would compile those of the archive again. `FOLDER/classes.jsa` holds
the classes that a short run loads; Java calls it class data sharing. It is valid for the Java and the Spark
that wrote it; a JVM ignores it if either has changed. A Java that cannot write it is no error: the tests then
take longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from lockgate.spark import read, write
from lockgate.storage_core.spark.session import spark_session

PARTS: Final = ("bin", "jars")
"""The folders of an installation that Spark's start scripts read."""

WRITE_AT_EXIT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit="


def main(folder: Path) -> None:
    """Make the links, then run Spark once from there, with the calls that most tests make."""
    home, archive = folder / "home", folder / "classes.jsa"
    home.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        (home / part).unlink(missing_ok=True)
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_HOME"] = str(home)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{WRITE_AT_EXIT}{new} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory() as data:
        os.environ["LOCKGATE_HOME"] = f"{data}/home"  # not the journal of the person who runs the tests
        spark = spark_session("classes", master="local[2]")
        spark.sparkContext.setLogLevel("OFF")
        rows = spark.range(400, numPartitions=2).selectExpr("id", "id % 5 AS day")
        write(rows, f"{data}/partitioned", partition_by=["day"])
        write(rows.groupBy("day").count(), f"{data}/counted")
        rows.write.parquet(f"{data}/plain")
        spark.read.parquet(f"{data}/plain").orderBy("id").collect()
        read(spark, f"{data}/partitioned").groupBy("day").count().collect()
        gateway = spark.sparkContext._gateway  # noqa: SLF001 - nothing public waits for the JVM
        spark.stop()
    process = gateway.proc
    process.stdin.close()  # the JVM ends at the end of its input, and writes the archive
    process.wait(timeout=120)
    if new.exists():
        new.rename(archive)
    else:
        sys.stderr.write(
            f"this Java wrote no {archive}; the tests start their JVMs without it, and take longer\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
