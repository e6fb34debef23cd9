"""Read live files by Spark's own Parquet reader, if a user asks for it.

Spark is given exactly the files of the manifest, so it sees whole jobs only. Calendars, types and options of
its Parquet files then mean what they mean to Spark, and filters and columns are pushed down to the files. It
refuses some types that other programs write, which Lockgate's reader reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError
from pyspark.sql.functions import col
from pyspark.sql.types import StructField, StructType

from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.spark.reader.published_schema import recorded_schema
from lockgate.storage_core.spark.s3a import ENDPOINT, s3a_config
from lockgate.storage_core.spark.schema.columns import ddl_type, quoted
from lockgate.storage_core.tables.partitions import partition_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lockgate.storage_core.commit.destination.log import Manifest
    from lockgate.storage_core.stores import Store

_READS_IDS: Final = "spark.sql.parquet.fieldId.read.enabled"
_FIELD_IDS: Final = frozenset({"parquet.field.id"})
_DEFAULTS: Final = frozenset({"CURRENT_DEFAULT", "EXISTS_DEFAULT"})
"""Metadata by which Spark fills a column that a file lacks; they are another table's."""
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_S3A_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_FOLDERS: Final = {
    "string": re.compile(r".+", re.DOTALL),
    "int": re.compile(r"-?\d{1,9}", re.ASCII),
    "bigint": re.compile(r"-?\d{1,18}", re.ASCII),
    "date": re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII),
}
"""Types of partition columns with the values that Spark reads as they were written: it changes the scale of
decimals, and narrows small integers without a check."""


def spark_frame(spark: SparkSession, store: Store, manifest: Manifest, ddl: str) -> DataFrame:
    """Return the live files as Spark's own reader reads them.

    Args:
        spark: Spark session.
        store: Store of the destination.
        manifest: Live files.
        ddl: Columns to read, as `published_schema` returns them.

    Raises:
        InvalidInputError: Spark does not reach the files, or would read other columns or values from their
            folders than the log has.
    """
    root = _reachable_root(spark, store, manifest)
    types = cast("StructType", StructType.fromDDL(ddl))
    if not _is_one_layout(manifest.files) or not _are_plain(types, manifest.files):
        raise InvalidInputError(
            f"{store.url}: Spark's own reader would find other partition values in the folders of its files; "
            "nothing was read; leave out by_spark"
        )
    recorded = recorded_schema(store, manifest) or StructType()
    schema = _without(_with_metadata(types, recorded), _DEFAULTS)
    by_id = str(spark.conf.get(_READS_IDS)).lower() == "true"
    # Spark would want an id in every file. The names of files are no patterns, although some contain `{`.
    reader = spark.read.schema(schema if by_id else _without(schema, _FIELD_IDS))
    reader = reader.option("__globPaths__", "false")
    # Spark finds partition columns below one folder: kept files of an earlier turn lie below another.
    bases = {f"{root}/": manifest.files.keys() - manifest.kept, f"{root}/{layout.KEPT}": manifest.kept}
    with _few_listing_tasks(spark):
        frames = [
            reader.option("basePath", base).parquet(*(f"{base}{key}" for key in sorted(keys)))
            for base, keys in bases.items()
            if keys
        ]
    return reduce(lambda one, other: one.union(other), frames).select(
        *(col(quoted(field.name)).alias(field.name, metadata=field.metadata) for field in schema)
    )


def _without(schema: StructType, names: frozenset[str]) -> StructType:
    """Return the schema without these entries of its metadata, at every depth."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(each) for name, each in value.items() if name not in names}
        return [without(each) for each in value] if isinstance(value, list) else value

    return StructType.fromJson(without(schema.jsonValue()))


@contextmanager
def _few_listing_tasks(spark: SparkSession) -> Iterator[None]:
    """Let Spark look at the files in one task a core: by default it begins one for each of many files."""
    before = spark.conf.get(_LISTING)
    spark.conf.set(_LISTING, str(spark.sparkContext.defaultParallelism))
    try:
        yield
    finally:
        spark.conf.set(_LISTING, str(before))


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


def _are_plain(schema: StructType, keys: Iterable[str]) -> bool:
    """Return whether Spark reads the values in the folders as they were written."""
    types = {field.name: _FOLDERS.get(field.dataType.simpleString()) for field in schema.fields}
    for name, value in {pair for key in keys for pair in partition_values(key).items()}:
        plain = types.get(name)
        if plain is None or (value is not None and not plain.fullmatch(value)):
            return False
    return True


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


def _reachable_root(spark: SparkSession, store: Store, manifest: Manifest) -> str:
    """Return the destination as Spark's path.

    Raises:
        InvalidInputError: Spark does not find a live file there.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    root, reason = store.url, "Spark Connect does not tell"
    try:
        if jvm is not None:
            hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no public call
            if root.startswith("s3://"):
                root = f"s3a{root.removeprefix('s3')}"
            if root.startswith("s3a://") and not _has_s3a(hadoop):
                reason = "its session has no S3A for the endpoint of Lockgate's settings"
            elif not manifest.files:
                reason = "there are no files"
            else:
                key, file = next(iter(manifest.files.items()))
                path = jvm.org.apache.hadoop.fs.Path(f"{root}/{manifest.path(key)}")
                if path.getFileSystem(hadoop).getFileStatus(path).getLen() == file.size:
                    return root
                reason = f"it finds another file as {key}"
    except Py4JError as error:
        reason = str(error)
    raise InvalidInputError(
        f"{store.url}: Spark's own reader does not reach its files ({reason}); nothing was read; leave out "
        "by_spark, or let Spark reach the store"
    )


def _has_s3a(hadoop: Any) -> bool:
    """Return whether the session has S3A, for the server of Lockgate's settings."""
    wanted = s3a_config(load_settings()).get(ENDPOINT, "")
    there = hadoop.get(ENDPOINT) or ""
    return hadoop.getClassByNameOrNull(_S3A_CLASS) is not None and there.rstrip("/") == wanted.rstrip("/")
