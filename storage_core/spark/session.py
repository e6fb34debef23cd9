"""Start a Spark session after checking for Java, and add a job's libraries to it.

Spark reads the files of libraries in place, so hold them until the session has stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockgate.storage_core.errors import MissingPartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.storage_core.blobs.library import Libraries, Unpacked

MIN_JAVA: Final = 17
_REMEDY: Final = (
    f"nothing was started; install a Java {MIN_JAVA} runtime (Debian: openjdk-{MIN_JAVA}-jre-headless), "
    "or point JAVA_HOME at one"
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def spark_session(
    app_name: str = "lockgate",
    *,
    master: str = "local[2]",
    time_zone: str = "UTC",
    config: Mapping[str, str] | None = None,
    remote: str | None = None,
) -> SparkSession:
    """Start a Spark session, or return that of this process, with the data source registered.

    Python workers use the interpreter of this process. With a local master the driver listens on the loopback
    address. The web page is disabled.

    Args:
        app_name: Name of the application.
        master: Spark's master; `local[2,3]` gives two threads and three tries of each task.
        time_zone: Time zone of shown timestamps and of partition folders.
        config: Spark settings, which override those above.
        remote: URL of a Spark Connect server (`sc://host:port/…`), in place of a master; the session then has
            the server's settings, and no data source.

    Raises:
        MissingPartError: Java is missing, or older than Spark needs.
    """
    if remote is not None:
        return _remote_session(remote, {"spark.sql.session.timeZone": time_zone, **(config or {})})
    check_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - Java is checked first

    from lockgate.storage_core.spark.data_source import register  # noqa: PLC0415 - imports PySpark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.sql.session.timeZone": time_zone,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **(_LOOPBACK if master.startswith("local") else {}),
        **(config or {}),
    }
    session = SparkSession.builder.appName(app_name).master(master).config(map=settings).getOrCreate()
    register(session)
    return session


def _remote_session(remote: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow

    try:
        session = SparkSession.builder.remote(remote).getOrCreate()
    except ImportError as error:
        raise MissingPartError(
            f"Spark Connect: a package is missing ({error}); nothing was started; "
            "pip install 'pyspark[connect]'"
        ) from error
    for name, value in config.items():
        session.conf.set(name, value)
    return session


_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def check_java() -> None:
    """Check that this machine has a Java runtime that Spark can use.

    Raises:
        MissingPartError: Java is missing, does not run, or is too old; the message has the remedy.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        where = f"under JAVA_HOME={home}" if home else "on PATH, and JAVA_HOME is not set"
        raise MissingPartError(f"Spark needs Java {MIN_JAVA}: there is no java {where}; {_REMEDY}")
    version = _java_version(java)
    if version is None or version < MIN_JAVA:
        found = f"is Java {version}" if version else "does not run"
        raise MissingPartError(f"Spark needs Java {MIN_JAVA}: {java} {found}; {_REMEDY}")


def _java_version(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


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
