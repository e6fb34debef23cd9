"""Spark's daemon of Python processes, with the imports that each of its forks would make again."""

from __future__ import annotations

import importlib
from typing import Final

DAEMON: Final = {"spark.python.daemon.module": __name__}
"""Setting of a session whose working directory is that of the tests."""

IMPORTS: Final = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "lockgate.storage_core.spark.data_source",
    "lockgate.storage_core.commit.leases.registration",
    "lockgate.storage_core.journal",
)

if __name__ == "__main__":
    for module in IMPORTS:
        importlib.import_module(module)
    importlib.import_module("pyspark.daemon").manager()
