"""Spark's own writer streams into pending files: uploads on S3 that stay open, hidden files elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import boto3
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from lockgate import attach_job, open_job, read_manifest
from lockgate.operators.audit import AuditOperator
from lockgate.operators.dag_run.job_handle import handle_of
from lockgate.operators.spark import SparkWriteOperator
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.task.attempt import Attempt
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.spark import pending_write
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.spark.pending_write import JAR, obstacle
from lockgate.storage_core.stores import open_store
from scripts.commit_protocol_jar import JAVA, build
from tests.support.s3.real_server import environment, new_url
from tests.support.soak import soak_only
from tests.support.spark import frames
from tests.support.spark.accidents import FIRST_TRY
from tests.support.spark.cluster import CLUSTER_CONFIG, HOSTS, standalone_cluster
from tests.support.spark.driver import DAYS, Driver, DriverDiedError, spark_driver

JARS = Path(__file__).parents[3] / ".tools" / "ivy" / "jars"
PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
KMS = Path(frames.__file__).with_name("KmsOfTests.java")

pytestmark = pytest.mark.integration
COMMIT_PROTOCOL = "spark.sql.sources.commitProtocolClass"
SPARKS_PROTOCOL = "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
HEADERS = "fs.s3a.client.s3.custom.headers"
CONFIG = {
    "spark.driver.extraClassPath": f"{JARS}/*",
    f"spark.hadoop.{HEADERS}": "x-amz-meta-lockgate-token=of-the-user,x-amz-meta-team=blue",
}

with_jars = pytest.mark.skipif(
    not JARS.exists(), reason="no hadoop-aws: `make s3a-jars` fetches 690 MB, once"
)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Yield a driver that reaches S3, and tries a failed task again."""
    folder = tmp_path_factory.mktemp("driver")
    if is_jdk():
        subprocess.run(["javac", "-cp", f"{PYSPARK_JARS}/*", "-d", folder, KMS], check=True)
    config = {**CONFIG, "spark.driver.extraClassPath": f"{JARS}/*:{folder}"}
    log = folder / "driver.log"
    with spark_driver(log, master="local[2,3]", config=config, environment=environment()) as started:
        yield started


def leftovers(destination: str) -> list[str]:
    """Return open uploads, and objects that are neither data nor Lockgate's."""
    store = open_store(destination)
    uploads = [upload.key for page in store.upload_pages() for upload in page]
    keys = [info.key for page in store.pages() for info in page]
    known = ("day=", "part-", "_lockgate/", "_SUCCESS")
    strange = [key for key in keys if not key.startswith(known)]
    return uploads + strange


def is_jdk() -> bool:
    javac = shutil.which("javac")
    found = "" if javac is None else subprocess.check_output([javac, "-version"], text=True).split()[1]
    return found.startswith(f"{JAVA}.")


with_jdk = pytest.mark.skipif(not is_jdk(), reason=f"no JDK {JAVA}: apt install")


@with_jdk
def test_the_jar_of_the_package_is_that_of_its_sources(tmp_path: Path) -> None:
    build(tmp_path / "new.jar")
    assert (tmp_path / "new.jar").read_bytes() == JAR.read_bytes(), "run `make jar`"


@pytest.mark.requires("s3-server")
@pytest.mark.usefixtures("s3")
def test_without_hadoop_aws_files_are_uploaded_while_spark_writes_others(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "without hadoop-aws" in obstacle(spark, s3=True)
    begun, ended = list[bool](), Event()
    add_file, by_spark = Attempt.add_file, pending_write.write_pending

    def noted(attempt: Attempt, *rest: object, **more: object) -> object:
        begun.append(ended.is_set())
        return add_file(attempt, *rest, **more)  # type: ignore[arg-type]

    def written(*rest: Any, **more: Any) -> None:
        by_spark(*rest, **more)
        ended.set()

    monkeypatch.setattr(Attempt, "add_file", noted)
    monkeypatch.setattr(pending_write, "write_pending", written)
    destination, part_bytes = new_url(), 5 * 1024 * 1024
    texts = f"repeat('x', {part_bytes + 1})", "java_method('java.lang.Thread', 'sleep', 5000L)"
    frame = spark.range(2, numPartitions=2).selectExpr("id", f"if(id = 0, {texts[0]}, {texts[1]}) AS text")
    receipt = write(frame, destination, compression="none", options={"partBytes": part_bytes})
    assert receipt is not None
    assert (receipt.via, receipt.rows) == ("spark", 2)
    assert begun == [False, True]
    assert sorted(file.size > part_bytes for file in read_manifest(destination).files.values()) == [
        False,
        True,
    ]
    assert leftovers(destination) == []


def test_options_and_a_cached_frame_are_those_of_sparks_own_write(
    spark: SparkSession, destination: str, tmp_path: Path
) -> None:
    frame = spark.range(1000, numPartitions=2).selectExpr("id", "rand() AS price").cache()
    options = {"parquet.bloom.filter.enabled#id": "true", "parquet.block.size": "4096"}
    destination += " é%20 of spaces"
    receipt = write(frame, destination, via="spark", compression="zstd", options=options)
    frame.write.options(compression="zstd", **options).parquet(str(tmp_path / "by-spark"))
    assert receipt is not None
    assert sorted(read(spark, destination).collect()) == sorted(frame.collect())
    sizes = [file.size for file in read_manifest(destination).files.values()]
    assert sorted(sizes) == sorted(file.stat().st_size for file in (tmp_path / "by-spark").glob("*.parquet"))
    assert not Path(destination, "_temporary").exists()
    assert spark.conf.get(COMMIT_PROTOCOL) == SPARKS_PROTOCOL


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
def test_two_jobs_at_once_stream_to_s3_with_a_task_that_fails(driver: Driver) -> None:
    destinations, names = [new_url(), new_url()], [HEADERS, COMMIT_PROTOCOL]
    before = driver.ask("settings", names=names)
    written = driver.ask("write_by_spark", destinations=destinations)
    assert written == [["spark", 1000, 20], ["spark", 1000, 20]]
    assert [leftovers(destination) for destination in destinations] == [[], []]
    assert driver.ask("settings", names=names) == before
    token, metadata = token_and_metadata(destinations[0])
    assert metadata == {"team": "blue", "lockgate-token": token}


def token_and_metadata(destination: str) -> tuple[str, dict[str, str]]:
    """Return the token of a published file by the log, and the metadata of its object."""
    key, file = next(iter(read_manifest(destination).files.items()))
    bucket, _, prefix = destination.removeprefix("s3://").partition("/")
    found = boto3.client("s3").head_object(Bucket=bucket, Key=f"{prefix}/{key}")
    return file.token, found["Metadata"]


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
def test_headers_of_a_bucket_are_kept_and_do_not_hide_the_token(driver: Driver) -> None:
    destination = new_url()
    ours = f"fs.s3a.bucket.{destination.split('/')[2]}.client.s3.custom.headers"
    headers = "x-amz-meta-team=red,x-amz-meta-lockgate-token=of-the-user"
    rows = driver.ask(
        "write", destination=destination, how="write", rows=10, via="spark", settings={ours: headers}
    )
    token, metadata = token_and_metadata(destination)
    assert (rows, metadata) == (10, {"team": "red", "lockgate-token": token})


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
def test_rows_columns_folders_and_sizes_on_s3_are_those_of_sparks_own_writer(
    driver: Driver, tmp_path: Path
) -> None:
    found = driver.ask("write_matrix", destination=new_url(), reference=str(tmp_path))
    assert len(found) == 16
    assert {case: differs for case, differs in found.items() if differs} == {}


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
def test_s3a_reads_the_success_file_as_that_of_its_own_committer(driver: Driver) -> None:
    destination = new_url()
    driver.ask("write", destination=destination, how="write", rows=20, via="spark")
    found = driver.ask("success", destination=destination)
    assert found == {"committer": "magic", "filenames": sorted(read_manifest(destination).files)}


@pytest.mark.requires("s3-server")
@with_jars
@with_jdk
@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("on_s3", [True, False])
def test_columns_are_encrypted_with_the_keys_of_the_options(
    driver: Driver, destination: str, *, on_s3: bool
) -> None:
    place = new_url() if on_s3 else destination
    seen = {"read": True, "is secret": True}
    found = driver.ask("write_encrypted", destination=f"{place}/a", has_plain_footer=False)
    assert found == {**seen, "mark": "PARE", "rows": None}
    found = driver.ask("write_encrypted", destination=f"{place}/b", has_plain_footer=True)
    assert found == {**seen, "mark": "PAR1", "rows": 3}


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
def test_a_file_of_several_parts_is_whole(driver: Driver) -> None:
    destination, rows = new_url(), 1_500_000
    assert driver.ask("write_large", destination=destination, rows=rows) == [rows, rows, 0, rows - 1]
    store = open_store(destination)
    ((key, file),) = read_manifest(destination).files.items()
    assert (file.size, file.rows) == (store.head(key).size, rows)
    assert (
        int(store.head(key).version.strip('"').rpartition("-")[2]) == -(-file.size // (5 * 1024 * 1024)) > 1
    )


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("dies", [soak_only("commit"), soak_only("_adopt_upload")])
def test_a_driver_that_dies_before_its_job_commit_leaves_nothing(tmp_path: Path, dies: str) -> None:
    destination = new_url()
    with spark_driver(tmp_path / "log", config=CONFIG, environment=environment()) as mortal:
        mortal.ask("write", destination=destination, how="write", rows=100, via="spark", job_name="first")
        with pytest.raises(DriverDiedError):
            mortal.ask("write", destination=destination, how="write", rows=100, via="spark", dies=dies)
    assert len(leftovers(destination)) == 2 * DAYS
    assert attach_job(destination, JobId("nightly-g1")).abort() is JobPhase.FAILED
    assert leftovers(destination) == []
    assert sum(file.rows or 0 for file in read_manifest(destination).files.values()) == 100


def by_day(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", f"id % {DAYS} AS day")


def suite(*expectations: tuple[str, dict[str, object]]) -> dict[str, object]:
    listed = [{"type": kind, "kwargs": kwargs} for kind, kwargs in expectations]
    return {"name": "by day", "expectations": listed}


@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
@pytest.mark.filterwarnings("ignore")  # Great Expectations imports much
def test_the_operators_stream_to_s3_and_audit_by_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = next(JARS.glob("*hadoop-aws-3*"))
    (tmp_path / found.name).symlink_to(found)
    monkeypatch.setenv("LOCKGATE_SPARK_S3_JARS", str(tmp_path))
    destination, pushed = new_url(), dict[str, Any]()
    with open_job(destination, "by-operators", audit=True) as job:
        handle = handle_of(job)
    checks = suite(
        ("expect_table_row_count_to_equal", {"value": 100}),
        ("expect_column_max_to_be_between", {"column": "id", "max_value": 99}),
        ("expect_column_values_to_not_be_null", {"column": "id"}),
    )
    write = SparkWriteOperator(
        task_id="write",
        job=handle,
        python_callable=by_day,
        partition_by=["day"],
        master="local[2]",
        spark_config={"spark.driver.extraClassPath": f"{JARS}/*"},
        suite=checks,
    )
    assert write.execute({"ti": SimpleNamespace(xcom_push=pushed.__setitem__)}) == [[]]
    passed = AuditOperator(task_id="audit", job=pushed["job"], suite=checks).execute({})
    assert (passed["rows"], passed["expectations"]) == (100, 3)
    receipt = attach_job(destination, job.job_id, job_attempt=pushed["job"]["job_attempt"]).commit()
    assert (receipt.rows, leftovers(destination)) == (100, [])


@pytest.fixture(scope="module")
def cluster_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Yield a driver of two hosts, whose executors have neither the jar nor a shared directory."""
    root = tmp_path_factory.mktemp("cluster")
    config = {**CLUSTER_CONFIG, **CONFIG, "spark.executor.extraClassPath": f"{JARS}/*"}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as started:
        for name, value in environment().items():
            patch.setenv(name, value)  # executors get it from their worker
        master = started.enter_context(standalone_cluster(root))
        yield started.enter_context(spark_driver(root / "driver.log", master=master, config=config))


@pytest.mark.soak
@pytest.mark.fault
@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("accident", ["slow", "killed"])
def test_on_a_cluster_a_loser_and_a_killed_executor_leave_nothing(
    cluster_driver: Driver, tmp_path: Path, accident: str
) -> None:
    destination = new_url()
    cluster_driver.ask("await_executors", count=len(HOSTS))
    rows = cluster_driver.ask(
        "write",
        destination=destination,
        how="write",
        rows=20_000,
        via="spark",
        accident=[accident, destination, str(tmp_path), 3],
        options={"maxRecordsPerFile": "2000"},
    )
    assert rows == 20_000
    assert len(json.loads((tmp_path / FIRST_TRY).read_text())["uploads"]) >= 3
    assert cluster_driver.ask("ids", destination=destination) == [20_000, 20_000, 0, 19_999]
    assert leftovers(destination) == []


@pytest.mark.soak
@pytest.mark.requires("s3-server")
@with_jars
@pytest.mark.usefixtures("s3")
def test_uploads_of_an_executor_that_dynamic_allocation_ends_are_published(tmp_path: Path) -> None:
    destination = new_url()
    config = {
        **CLUSTER_CONFIG,
        **CONFIG,
        "spark.executor.extraClassPath": f"{JARS}/*",
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": str(len(HOSTS)),
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
    }
    with pytest.MonkeyPatch.context() as patch, ExitStack() as started:
        for name, value in environment().items():
            patch.setenv(name, value)
        master = started.enter_context(standalone_cluster(tmp_path))
        driver = started.enter_context(spark_driver(tmp_path / "driver.log", master=master, config=config))
        rows, seen = driver.ask("write_while_executors_leave", destination=destination)
        assert rows == 8
        assert (3, 2) in pairwise(seen), f"the driver keeps the executor whose task was not done: {seen}"
        assert driver.ask("ids", destination=destination) == [8, 8, 0, 7]
    assert leftovers(destination) == []
