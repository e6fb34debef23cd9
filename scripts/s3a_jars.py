"""Fetch hadoop-aws of Spark's Hadoop version and its dependencies: `python -m scripts.s3a_jars FOLDER`.

The jars are then in `FOLDER/jars`, for `LOCKGATE_SPARK_S3_JARS`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.s3a import s3a_jars
from lockgate.storage_core.spark.session import spark_session


def fetch(folder: Path) -> None:
    """Fetch the jars, unless they are there; a folder `jars` is complete."""
    if (folder / "jars").exists():
        return
    fetched = folder / "new"
    config = {**s3a_jars(Settings(spark_s3_jars=None)), "spark.jars.ivy": str(fetched.absolute())}
    spark_session("fetch hadoop-aws", master="local[1]", config=config).stop()
    (fetched / "jars").rename(folder / "jars")
    shutil.rmtree(fetched)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
