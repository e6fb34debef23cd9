"""Read live files by Spark's own Parquet reader, wherever this session of Spark reaches the store.

Spark is given exactly the files of the manifest, so it sees whole jobs only. Calendars, types and options of
its Parquet files then mean what they mean to Spark, and filters and columns are pushed down to the files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.functions import col
from pyspark.sql.types import StructField, StructType

from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.spark.reader.published_schema import recorded_schema
from lockgate.storage_core.spark.s3a import ENDPOINT, s3a_config
from lockgate.storage_core.spark.schema.columns import ddl_type, quoted
from lockgate.storage_core.spark.schema.hive_layout import partition_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lockgate.storage_core.commit.destination.log import Manifest
    from lockgate.storage_core.stores import Store

LOG: Final = logging.getLogger("lockgate.spark")

_READS_IDS: Final = "spark.sql.parquet.fieldId.read.enabled"
_FIELD_ID: Final = "parquet.field.id"
_S3A_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def spark_frame(spark: SparkSession, store: Store, manifest: Manifest, ddl: str) -> DataFrame | None:
    """Return the live files as Spark's own reader reads them.

    Args:
        spark: Spark session.
        store: Store of the destination.
        manifest: Live files.
        ddl: Columns to read, as `published_schema` returns them.

    Returns:
        The rows; None if Spark did not write these files, does not reach them, or would read other columns
        from their folders than the log has.
    """
    recorded = recorded_schema(store, manifest)
    if (recorded is None and manifest.columns is None) or not _is_one_layout(manifest.files):
        return None
    root = _reachable_root(spark, store, manifest)
    if root is None:
        return None
    schema = _with_metadata(cast("StructType", StructType.fromDDL(ddl)), recorded or StructType())
    by_id = str(spark.conf.get(_READS_IDS)).lower() == "true"
    # The names of files are no patterns, although some contain `{` or `[`.
    reader = (
        spark.read.schema(schema if by_id else _without_ids(schema))
        .option("basePath", root)
        .option("__globPaths__", "false")
    )
    frame = reader.parquet(*(f"{root}/{key}" for key in manifest.files))
    return frame.select(
        *(col(quoted(field.name)).alias(field.name, metadata=field.metadata) for field in schema)
    )


def _without_ids(schema: StructType) -> StructType:
    """Return the schema without field ids, which Spark would want in every file, also if it reads by name."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(each) for name, each in value.items() if name != _FIELD_ID}
        return [without(each) for each in value] if isinstance(value, list) else value

    return StructType.fromJson(without(schema.jsonValue()))


def _is_one_layout(keys: Iterable[str]) -> bool:
    """Return whether Spark finds the same partition columns in the folders of all files, and hides none."""
    layouts = set()
    for key in keys:
        folders = key.split("/")[:-1]
        names = tuple(partition_values(key))
        if is_hidden(key) or (names and len(names) < len(folders)):
            return False
        layouts.add(names)
    return len(layouts) == 1


def _with_metadata(schema: StructType, recorded: StructType) -> StructType:
    """Return the schema with the comments and the metadata that Spark recorded in a file."""
    known = {field.name: field for field in recorded.fields}
    fields = []
    for field in schema.fields:
        own = known.get(field.name)
        if own is not None and ddl_type(own.dataType) == ddl_type(field.dataType):
            fields.append(StructField(field.name, own.dataType, nullable=True, metadata=own.metadata))
        else:
            fields.append(field)
    return StructType(fields)


def _reachable_root(spark: SparkSession, store: Store, manifest: Manifest) -> str | None:
    """Return the destination as Spark's path; None if Spark does not find a live file there."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return None  # Spark Connect: the server's settings are not known here
    root = store.url
    try:
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no public call
        if root.startswith("s3://"):
            if not _has_s3a(hadoop):
                return None
            root = f"s3a{root.removeprefix('s3')}"
        key, file = next(iter(manifest.files.items()))
        path = jvm.org.apache.hadoop.fs.Path(f"{root}/{key}")
        found = path.getFileSystem(hadoop).getFileStatus(path).getLen()
    except Py4JError as error:
        LOG.info("%s: Spark does not reach it, so Lockgate's reader reads it: %s", store.url, error)
        return None
    return root if found == file.size else None


def _has_s3a(hadoop: Any) -> bool:
    """Return whether the session has S3A, for the server of Lockgate's settings."""
    wanted = s3a_config(load_settings()).get(ENDPOINT, "")
    there = hadoop.get(ENDPOINT) or ""
    return hadoop.getClassByNameOrNull(_S3A_CLASS) is not None and there.rstrip("/") == wanted.rstrip("/")
