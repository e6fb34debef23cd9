"""Writes by `spark`, compared with those of Spark's own committer; calls of a driver that reaches S3."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lockgate import read_manifest
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.spark.s3a import configure_s3a
from lockgate.storage_core.stores import open_store
from tests.support.spark.frames import PARQUET_SETTINGS, every_type, nested, of_all_ages, texts
from tests.support.spark.settings import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS: Final = {"snappy": "snappy", "zstd": "zstd", "gzip": "gzip", "lz4": "lz4_raw", "none": "uncompressed"}
"""Names of Lockgate's and of Spark's option."""
_KEYS: Final = {
    "parquet.crypto.factory.class": "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory",
    "parquet.encryption.kms.client.class": "KmsOfTests",
}
_SECRET: Final = "in plain text"


class _Case(NamedTuple):
    frame: DataFrame
    partition_by: Sequence[str] = ()
    settings: Mapping[str, str] = {}
    codec: str = "snappy"


def _cases(spark: SparkSession) -> Iterator[tuple[str, _Case]]:
    types = every_type(spark)
    folders = [name for name in types.columns if name != "id"]
    for zone, ansi in (("Europe/Berlin", "true"), ("+05:30", "false")):
        settings = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}
        yield f"folders in {zone}", _Case(types, folders, settings)
    yield "types", _Case(types)
    for name, settings in PARQUET_SETTINGS.items():
        if name != "no field ids":  # Spark refuses its own files then
            yield name, _Case(of_all_ages(spark), settings=settings)
    yield "nested", _Case(nested(spark))
    yield "no rows", _Case(spark.range(0).selectExpr("id", "string(id) AS text"))
    numbers = spark.range(100, numPartitions=3).selectExpr("id", "CAST(id % 3 AS decimal(4,2)) AS part")
    for codec in CODECS:
        yield codec, _Case(numbers, ["part"], codec=codec)


def write_matrix(spark: SparkSession, *, destination: str, reference: str) -> dict[str, list[str]]:
    """Write each case to S3, and by Spark alone to a folder; return what differs, by case."""
    configure_s3a(spark, load_settings())
    found = {}
    for number, (name, case) in enumerate(_cases(spark)):
        with session_settings(spark, case.settings):
            found[name] = list(_differences(spark, case, f"{destination}/{number}", f"{reference}/{number}"))
    return found


def _differences(spark: SparkSession, case: _Case, ours: str, theirs: str) -> Iterator[str]:
    options = {"maxRecordsPerFile": 7}
    receipt = write(
        case.frame,
        ours,
        partition_by=case.partition_by,
        via="spark",
        compression=case.codec,
        options={**options, "parquet.block.size": 1 << 20},
    )
    writer = case.frame.write.options(**options).option("compression", CODECS[case.codec])
    writer.option("parquet.block.size", 1 << 20).partitionBy(*case.partition_by).parquet(theirs)
    read = [spark.read.parquet(url) for url in (ours, theirs)]
    sizes = {info.key: info.size for info in visible_files(open_store(ours))}
    by_spark = {file.relative_to(theirs).as_posix(): file for file in Path(theirs).rglob("*.parquet")}
    pairs = {
        "rows": [texts(frame) for frame in read],
        "columns": [frame.schema.json() for frame in read],
        "folders": [sorted(path.rpartition("/")[0] for path in paths) for paths in (sizes, by_spark)],
        "endings": [{_ending(path) for path in paths} for paths in (sizes, by_spark)],
        "sizes": [sorted(sizes.values()), sorted(file.stat().st_size for file in by_spark.values())],
        "recorded rows": [receipt and receipt.rows, case.frame.count()],
    }
    yield from (what for what, (one, other) in pairs.items() if one != other)


def _ending(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[2]


def success_for_hadoop(spark: SparkSession, *, destination: str) -> dict[str, Any]:
    """Return what S3A's own class reads of `_SUCCESS`."""
    configure_s3a(spark, load_settings())
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(f"{destination}/_SUCCESS")
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    loaded = java.org.apache.hadoop.fs.s3a.commit.files.SuccessData.load(files, path)
    return {"committer": loaded.getCommitter(), "filenames": sorted(loaded.getFilenames())}


def write_encrypted(spark: SparkSession, *, destination: str, has_plain_footer: bool) -> dict[str, Any]:
    """Write an encrypted column; return what is seen with its key, and in the file."""
    configure_s3a(spark, load_settings())
    options: dict[str, str | int] = {
        **_KEYS,
        "parquet.encryption.column.keys": "master:text",
        "parquet.encryption.footer.key": "master",
        "parquet.encryption.plaintext.footer": str(has_plain_footer).lower(),
    }
    frame = spark.range(3, numPartitions=1).selectExpr("id", f"'{_SECRET}' AS text")
    receipt = write(frame, destination, via="spark", compression="none", options=options)
    assert receipt is not None
    (key,) = read_manifest(destination).files
    data = open_store(destination).get(key)
    return {
        "read": texts(spark.read.options(**_KEYS).parquet(destination)) == texts(frame),
        "mark": data[-4:].decode(),
        "is secret": _SECRET.encode() not in data,
        "rows": receipt.rows,
    }


def write_while_executors_leave(spark: SparkSession, *, destination: str) -> tuple[int, list[int]]:
    """Write with one task that takes long; return the rows, and how many processes of Spark there were."""
    status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    seen, ended = list[int](), threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            if (size := status().size()) not in seen[-1:]:
                seen.append(size)

    looking = threading.Thread(target=look)
    looking.start()
    sleep = "java_method('java.lang.Thread', 'sleep', 12000L)"
    frame = spark.range(8, numPartitions=2).selectExpr("id", f"IF(id = 7, {sleep}, 'at once') AS text")
    try:
        receipt = write(frame, destination, via="spark")
    finally:
        ended.set()
        looking.join()
    assert receipt is not None
    return receipt.rows or 0, seen
