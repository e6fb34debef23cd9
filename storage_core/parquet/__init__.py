"""Parquet files in stores, read and written with PyArrow in a stream. Spark is not needed."""

from lockgate.storage_core.errors import MissingPartError

try:
    import pyarrow as _pyarrow  # noqa: F401, ICN001 - only to check that it is installed
except ImportError as error:
    raise MissingPartError(
        "Parquet files need pyarrow, which is not installed; pip install 'lockgate[spark]'"
    ) from error
