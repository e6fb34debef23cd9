"""A Spark session as Lockgate's operators, demo and tests start it, after a look whether Java is there."""

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
) -> SparkSession:
    """Start a Spark session, or return the one that this process has, with the data source registered.

    Python workers run the interpreter that called; the driver listens on the loopback address unless the
    master is elsewhere; there is no web page.

    Args:
        app_name: What Spark calls the application.
        master: Spark's master; `local[2,3]` gives two threads and three tries of each task.
        time_zone: In which timestamps are shown, and become partition folders.
        config: Spark settings; they win over those above.

    Raises:
        MissingPartError: There is no Java, or an older one than Spark needs.
    """
    check_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the question about Java comes first

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


_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def check_java() -> None:
    """Make sure that a Java runtime which Spark can use is on this machine.

    Raises:
        MissingPartError: There is none, it does not run, or it is too old; the message says how to get one.
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
