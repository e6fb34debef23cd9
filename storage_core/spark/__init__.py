"""Spark support: the data source, `write` with all modes, `read`, and staging; public as `lockgate.spark`.

Importing this package needs PySpark and PyArrow, but not Java, which `spark_session` checks.
"""

from lockgate.storage_core.errors import MissingPartError

try:
    import pyarrow as _pyarrow  # noqa: F401, ICN001 - only to check that it is installed
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise MissingPartError(
        f"lockgate.spark needs {error.name}, which is not installed; pip install 'lockgate[spark]'"
    ) from error
