"""Add a job's libraries to a Spark session: Python code and jars, on the driver and on every executor.

Spark reads the files in place, so hold the libraries until the session has stopped.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lockgate.storage_core.blobs.libraries.library import Libraries, Unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def library_config(libraries: Libraries) -> dict[str, str]:
    """Return the configuration for a new session: its jars, which the driver needs from the start."""
    return {"spark.jars": ",".join(str(jar) for jar in libraries.jars)} if libraries.jars else {}


def add_libraries(spark: SparkSession, libraries: Libraries) -> None:
    """Add a job's libraries to a session; the driver and later tasks can then import them.

    Jars that are not in the session's configuration are added for SQL and for executors.

    Args:
        spark: Spark session.
        libraries: Libraries, held until the session has stopped.
    """
    context = spark.sparkContext
    for path in (*libraries.modules, *libraries.archives):
        context.addPyFile(path.as_uri())  # a plain path would be resolved to the link's target
    for unpacked in libraries.unpacked:
        _add_unpacked(spark, unpacked)
    known = set(context.getConf().get("spark.jars", "").split(","))
    for jar in libraries.jars:
        if str(jar) not in known:
            quoted = str(jar).replace("'", r"\'")
            spark.sql(f"ADD JAR '{quoted}'")


def _add_unpacked(spark: SparkSession, unpacked: Unpacked) -> None:
    """Extract an archive on every executor, and add its folders to the import path."""
    context = spark.sparkContext
    name = unpacked.folder.name
    context.addArchive(f"{unpacked.archive.as_uri()}#{name}")
    # As addPyFile does for a zip; Spark has no public call for an archive.
    context._python_includes.extend(f"{name}/{root}" for root in unpacked.roots)  # type: ignore[union-attr]  # noqa: SLF001
    sys.path[1:1] = [str(unpacked.folder / root) for root in unpacked.roots]
