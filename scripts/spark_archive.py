"""Write the classes that a short Spark run loads to an archive; JVMs start from it in half the CPU time.

    python scripts/spark_archive.py ARCHIVE

Java calls it class data sharing. An archive is valid for the Java and the Spark that wrote it; a JVM ignores
an archive of another version. A Java that cannot write one is no error: the tests then take longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from lockgate.spark import read, write
from lockgate.storage_core.spark.session import spark_session

WRITE_AT_EXIT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit="


def main(archive: Path) -> None:
    """Run Spark once, with the calls that most tests make."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{WRITE_AT_EXIT}{new} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session("classes", master="local[2]")
        spark.sparkContext.setLogLevel("OFF")
        rows = spark.range(400, numPartitions=2).selectExpr("id", "id % 5 AS day")
        write(rows, f"{folder}/partitioned", partition_by=["day"])
        write(rows.groupBy("day").count(), f"{folder}/counted")
        rows.write.parquet(f"{folder}/plain")
        spark.read.parquet(f"{folder}/plain").orderBy("id").collect()
        read(spark, f"{folder}/partitioned").groupBy("day").count().collect()
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
    main(Path(sys.argv[1]))
