"""Read and write destinations with Spark: `read`, `write`, `register`, `stage`.

    from lockgate.spark import read, spark_session, write

    spark = spark_session()
    receipt = write(frame, "s3://lake/sales", mode="replace", partition_by=["day"])
    read(spark, "s3://lake/sales").show()

Importing this module needs PySpark and PyArrow (`pip install 'lockgate[spark]'`); `spark_session` needs
Java 17.
"""

from lockgate.storage_core.spark.data_source import LockgateDataSource, read, register
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.spark.session import spark_session
from lockgate.storage_core.spark.stage import stage

__all__ = ["LockgateDataSource", "read", "register", "spark_session", "stage", "write"]
