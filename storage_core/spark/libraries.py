"""A job's libraries in a Spark session: Python code and jars, on the driver and on every executor.

Spark takes the files from where they lie, for as long as the session lives: hold them longer than it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lockgate.storage_core.blobs.libraries.library import Libraries, Unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def library_config(libraries: Libraries) -> dict[str, str]:
    """Return what a session must be made with: its jars, which the driver needs from the start."""
    return {"spark.jars": ",".join(str(jar) for jar in libraries.jars)} if libraries.jars else {}


def add_libraries(spark: SparkSession, libraries: Libraries) -> None:
    """Give a session a job's libraries; tasks from now on can import them, and the driver.

    Jars that the session was made with are known to it already; others are added, for SQL and for executors.

    Args:
        spark: The session.
        libraries: Held until it has stopped.
    """
    context = spark.sparkContext
    for path in (*libraries.modules, *libraries.archives):
        context.addPyFile(path.as_uri())  # of a bare path Spark follows the link, and takes that name
    for unpacked in libraries.unpacked:
        _add_unpacked(spark, unpacked)
    known = set(context.getConf().get("spark.jars", "").split(","))
    for jar in libraries.jars:
        if str(jar) not in known:
            quoted = str(jar).replace("'", r"\'")
            spark.sql(f"ADD JAR '{quoted}'")


def _add_unpacked(spark: SparkSession, unpacked: Unpacked) -> None:
    """Have an archive unpacked on every executor, and its folders on the import path there."""
    context = spark.sparkContext
    name = unpacked.folder.name
    context.addArchive(f"{unpacked.archive.as_uri()}#{name}")
    # What addPyFile does for a zip; Spark has no public call that does it for an archive.
    context._python_includes.extend(f"{name}/{root}" for root in unpacked.roots)  # type: ignore[union-attr]  # noqa: SLF001
    sys.path[1:1] = [str(unpacked.folder / root) for root in unpacked.roots]
