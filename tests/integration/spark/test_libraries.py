"""A job's libraries reach Spark's executors and its JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockgate.operators.spark import SparkWriteOperator
from lockgate.operators.spark_process.process import SparkChild, SparkWork
from lockgate.storage_core.blobs.library import LibraryCache
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.spark.session import add_libraries
from tests.support.blobs.cache import CacheWorld, cache_world
from tests.support.blobs.libraries import has_jdk, jar, native_wheel, upload, wheel
from tests.support.spark.libraries import Lines, applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.integration]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CacheWorld]:
    with cache_world(tmp_path) as world:
        yield world


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings of a home in which this process and its children open the blobs themselves."""
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    return load_settings()


@pytest.fixture(autouse=True)
def _driver_path() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path  # Spark extends the driver's path permanently


def test_a_udf_imports_an_uploaded_wheel_a_module_and_native_code_on_the_executors(
    world: CacheWorld, spark: SparkSession
) -> None:
    from pyspark.sql.functions import udf

    artefacts = upload(
        world.server,
        "sales",
        {
            "shipped_rates-1.0-py3-none-any.whl": wheel("shipped_rates", "RATE = 7"),
            "shipped_plain.py": b"def double(x):\n    return 2 * x\n",
            "shipped_native-1.0-cp311-cp311-linux_x86_64.whl": native_wheel("shipped_native"),
        },
    )
    with LibraryCache(world.cache()).pinned(artefacts) as libraries:
        add_libraries(spark, libraries)

        @udf("long", useArrow=False)
        def priced(amount: int) -> int:
            from shipped_plain import double
            from shipped_rates import RATE

            return int(double(amount) * RATE)

        rows = spark.range(3).select(priced("id").alias("priced")).collect()

        assert [row.priced for row in rows] == [0, 14, 28]
        assert applied(spark, "shipped_native", "library.escape('<')") == ["&lt;"] * 4
        where = applied(spark, "shipped_rates", "library.__file__")
        assert not any(str(world.path) in path for path in where)  # the executors have their own copies


@pytest.mark.skipif(not has_jdk(), reason="there is no JDK to build a jar with")
def test_a_jar_added_later_works_in_sql(world: CacheWorld, spark: SparkSession, tmp_path: Path) -> None:
    artefacts = upload(world.server, "sales", {"plus-one.jar": jar(tmp_path / "java")})
    with LibraryCache(world.cache()).pinned(artefacts) as libraries:
        add_libraries(spark, libraries)
        spark.udf.registerJavaFunction("plus_one", "lockgate.test.PlusOne", "long")
        rows = spark.range(3).selectExpr("plus_one(id) AS more").collect()
    assert [row.more for row in rows] == [1, 2, 3]


def with_shipped(spark: SparkSession) -> dict[str, object]:
    """Run in the child process with its own session."""
    from child_rates import RATE  # type: ignore[import-not-found]

    spark.udf.registerJavaFunction("plus_one", "lockgate.test.PlusOne", "long")
    frame = spark.range(3).selectExpr("plus_one(id) AS more")
    on_executors = applied(spark, "child_rates", "library.RATE + row")
    return {
        "driver": RATE,
        "executors": on_executors,
        "jvm": [row.more for row in frame.collect()],
        "jars": spark.sparkContext.getConf().get("spark.jars") or "",
    }


@pytest.mark.skipif(not has_jdk(), reason="there is no JDK to build a jar with")
def test_a_spark_child_starts_with_its_jobs_libraries_and_a_later_one_downloads_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with open_blobs(settings) as server:
        artefacts = upload(
            server,
            "sales",
            {
                "child_rates-1.0-py3-none-any.whl": wheel("child_rates", "RATE = 7"),
                "plus-one.jar": jar(tmp_path / "java"),
            },
        )
        work = SparkWork(run=with_shipped, arguments={}, master="local[2]", artefacts=artefacts.handle())

        result = SparkChild(Lines()).run(work)

        assert result["driver"] == 7
        assert result["executors"] == ["7", "8", "9", "10"]
        assert result["jvm"] == [1, 2, 3]
        assert result["jars"].endswith("plus-one.jar")
        for blob in artefacts.blobs:  # a retried task needs only the cache
            server.stores.local.delete("sales", blob.blob_key)
        assert SparkChild(Lines()).run(work)["driver"] == 7

        server.finish("sales")


def test_a_spark_child_without_its_library_reports_it_and_starts_no_session(settings: Settings) -> None:
    with open_blobs(settings) as server:
        artefacts = upload(server, "sales", {"child_rates.py": b"RATE = 7"})
        server.finish("sales")
    work = SparkWork(run=with_shipped, arguments={}, artefacts=artefacts.handle())
    with pytest.raises(ObjectNotFoundError, match="upload it again"):
        SparkChild(Lines()).run(work)


def test_the_operator_accepts_the_output_of_an_upload() -> None:
    operator = SparkWriteOperator(
        task_id="write", job={}, python_callable="m:f", artefacts={"job_id": "sales"}
    )
    assert "artefacts" in operator.template_fields
    assert operator.artefacts == {"job_id": "sales"}
