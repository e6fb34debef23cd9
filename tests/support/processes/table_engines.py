"""A process with a Spark that has Delta and Iceberg, of the environment that `make table-engines` makes.

It knows nothing of Lockgate: it reads calls from its input, and answers with their results, or with errors.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession

JARS: Final = Path(sys.prefix, "ivy", "jars")
EXTENSIONS: Final = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
SETTINGS: Final[Mapping[str, str]] = {
    "spark.jars": ",".join(map(str, JARS.glob("*.jar"))),
    "spark.sql.extensions": ",".join(EXTENSIONS),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
Options = Mapping[str, str]
Rows = list[dict[str, Any]]


def read(spark: SparkSession, form: str, path: str, options: Options) -> Rows:
    """Return all rows."""
    return [_plain(row) for row in _opened(spark, form, path, options).collect()]


def files_read(spark: SparkSession, form: str, path: str, where: str) -> tuple[int, Rows]:
    """Return of how many files a scan reads rows that a predicate needs, and these rows."""
    found = _opened(spark, form, path, {}).where(where)
    rows = found.collect()
    scan = found._jdf.queryExecution().executedPlan().collectLeaves().head()
    metrics = scan.metrics()
    name = "numFiles" if metrics.contains("numFiles") else "resultDataFiles"
    return metrics.apply(name).value(), [_plain(row) for row in rows]


def sql(spark: SparkSession, text: str) -> Rows:
    """Run a statement."""
    return [_plain(row) for row in spark.sql(text).collect()]


def append(spark: SparkSession, form: str, path: str, values: list[int]) -> None:
    """Append rows with a column `x`."""
    rows = spark.createDataFrame([(value,) for value in values], "x bigint").coalesce(1)
    rows.write.format(form).mode("append").save(path)


def expire(spark: SparkSession, path: str) -> None:
    """Expire all but the newest snapshot of an Iceberg table."""
    jvm: Any = spark._jvm
    tables = jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration())
    tables.load(path).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()


def _opened(spark: SparkSession, form: str, path: str, options: Options) -> DataFrame:
    return spark.read.format(form).options(**options).load(path)


def _plain(value: Any) -> Any:
    match value:
        case Row():
            return {name: _plain(part) for name, part in zip(value.__fields__, value, strict=True)}
        case dict():
            return [(_plain(key), _plain(part)) for key, part in value.items()]
        case list():
            return [_plain(part) for part in value]
        case _:
            return value


CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    call.__name__: call for call in (read, files_read, sql, append, expire)
}


def main() -> None:
    """Answer calls until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    builder = SparkSession.builder.master("local[1]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer = (True, CALLS[name](spark, *arguments))
        except Exception as error:  # noqa: BLE001 - it is the answer
            answer = (False, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
