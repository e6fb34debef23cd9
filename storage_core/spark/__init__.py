"""Spark support: the data source `lockgate`, `write` with all modes, `read`, and staging.

    from lockgate.spark import read, register, spark_session, write

    spark = spark_session()
    receipt = write(frame, "s3://lake/sales", mode="replace", partition_by=["day"])
    read(spark, "s3://lake/sales").show()

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

from lockgate.storage_core.commit.staged_files.listing import group_into_tasks, list_staged
from lockgate.storage_core.spark.data_source import LockgateDataSource, register
from lockgate.storage_core.spark.read import read
from lockgate.storage_core.spark.session import check_java, spark_session
from lockgate.storage_core.spark.stage import stage
from lockgate.storage_core.spark.write import write

__all__ = [
    "LockgateDataSource",
    "check_java",
    "group_into_tasks",
    "list_staged",
    "read",
    "register",
    "spark_session",
    "stage",
    "write",
]
