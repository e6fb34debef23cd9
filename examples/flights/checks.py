"""Check that everything the demo needs is installed, before it starts any process."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Final

from examples.flights.data.flights import archive
from lockgate.storage_core.errors import MissingPartError

DISK_BYTES: Final = 1024**3
PYTHON: Final = (3, 11)
PACKAGES: Final = ("airflow", "celery", "great_expectations", "pandas", "pyarrow", "pyspark")


def check_parts(home: Path) -> None:
    """Check that the demo can run to its end.

    Args:
        home: Existing folder that the demo writes.

    Raises:
        MissingPartError: A part is missing; the message has the remedy.
    """
    if sys.version_info < PYTHON:
        raise MissingPartError(
            f"the demo needs Python 3.11 or newer, this is {sys.version.split()[0]}; nothing was started"
        )
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPartError(
            f"the demo needs {', '.join(missing)}: pip install 'lockgate[dev]'; nothing was started"
        )
    archive()
    free_bytes = shutil.disk_usage(home).free
    if free_bytes < DISK_BYTES:
        raise MissingPartError(
            f"the demo needs 1 GiB of disk at {home}, {free_bytes / DISK_BYTES:.1f} GiB are free; make room, "
            "or set LOCKGATE_HOME to another disk; nothing was started"
        )
    # Imports PySpark, which is checked above.
    from lockgate.storage_core.spark.session import check_java  # noqa: PLC0415

    check_java()
