"""Make an environment with a Spark that has Delta and Iceberg: `python -m scripts.table_engines FOLDER`.

Their newest jars fit an older Spark than that of this project, so it is in a virtual environment of its own,
`FOLDER/bin/python`; the jars are in `FOLDER/ivy/jars`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

SPARK: Final = "pyspark==4.1.4"
PACKAGES: Final = (
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
)
"""Iceberg has no jar for a newer Spark; Delta has one for 4.2."""

_FETCH: Final = """
import sys
from pyspark.sql import SparkSession
ivy, packages = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.jars.ivy", ivy).config("spark.jars.packages", packages).getOrCreate().stop()
"""


def make(folder: Path) -> None:
    """Make the environment; its last part is `folder/ivy/jars`."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", SPARK], check=True)
    subprocess.run([python, "-c", _FETCH, folder / "ivy", ",".join(PACKAGES)], check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
