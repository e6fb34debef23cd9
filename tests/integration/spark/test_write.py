"""Tests of writes in real Spark: modes, layouts, the commit, and refused options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from lockgate import attach_job, read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import write
from lockgate.storage_core.stores import UploadInfo

pytestmark = pytest.mark.integration

Listing = Callable[[], list[str]]
Uploads = Callable[[], list[UploadInfo]]
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "spark.md"


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", "id % 3 AS day", "cast(id AS string) AS text")


def _ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def _save(frame: DataFrame, destination: str, spark_mode: str = "append", **options: str) -> None:
    frame.write.format("lockgate").mode(spark_mode).options(**options).save(destination)


def test_the_plain_writer_appends_and_overwrites(
    frame: DataFrame, spark: SparkSession, destination: str, open_uploads: Uploads
) -> None:
    _save(frame, destination, partitionBy="day")
    _save(frame, destination, partitionBy="day")
    assert _ids(read(spark, destination)) == sorted([*range(100), *range(100)])
    _save(frame.where("id < 5"), destination, "overwrite", partitionBy="day")
    assert _ids(read(spark, destination)) == [0, 1, 2, 3, 4]
    assert _ids(spark.read.parquet(destination)) == [0, 1, 2, 3, 4]
    assert open_uploads() == []


def test_hadoop_reads_the_success_file_as_one_of_its_own_committers(
    frame: DataFrame, spark: SparkSession, destination: str
) -> None:
    write(frame, destination, partition_by=["day"])
    java = spark._jvm
    path = java.org.apache.hadoop.fs.Path(f"{destination}/_SUCCESS")
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    manifest = java.org.apache.hadoop.mapreduce.lib.output.committer.manifest.files
    loaded = manifest.ManifestSuccessData.load(files, path)
    assert loaded.getSuccess()
    assert sorted(loaded.getFilenames()) == sorted(read_manifest(destination).files)
    assert loaded.getCommitter() == "magic"
    assert loaded.getMetrics()["parts"] == len(loaded.getFilenames())
    assert loaded.getTimestamp() > 0


def test_an_explicit_mode_overrides_the_mode_of_spark(frame: DataFrame, destination: str) -> None:
    _save(frame, destination, "overwrite", mode="append")
    _save(frame, destination, "overwrite", mode="append")
    with pytest.raises(AnalysisException, match="the mode is fail"):
        _save(frame, destination, "overwrite", mode="fail")
    assert read_manifest(destination).rows == 200


@pytest.mark.parametrize("how", ["option", "helper", "session"])
def test_dynamic_partition_overwrite_replaces_the_partitions_that_receive_rows(
    frame: DataFrame, spark: SparkSession, destination: str, how: str
) -> None:
    _save(frame, destination, partitionBy="day")
    new = frame.where("day = 1 AND id < 10").selectExpr("id + 1000 AS id", "day", "text")
    if how == "option":
        _save(new, destination, "overwrite", partitionBy="day", partitionOverwriteMode="dynamic")
    elif how == "helper":
        write(new, destination, mode="replace", scope="partitions", partition_by=["day"])
    else:
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        try:
            write(new, destination, mode="overwrite", partition_by=["day"])
        finally:
            spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    kept = [i for i in range(100) if i % 3 != 1]
    assert _ids(read(spark, destination)) == sorted([*kept, 1001, 1004, 1007])


@pytest.mark.parametrize("mode", ["fail", "error", "errorifexists"])
def test_mode_fail_refuses_a_destination_with_data_and_accepts_an_empty_one(
    frame: DataFrame, destination: str, mode: str, seen: Listing
) -> None:
    receipt = write(frame, destination, mode=mode)
    assert receipt is not None
    assert receipt.rows == 100
    before = seen()
    with pytest.raises(ConflictError, match="has data"):
        write(frame, destination, mode=mode)
    assert seen() == before


def test_mode_ignore_writes_once(frame: DataFrame, destination: str) -> None:
    assert write(frame, destination, mode="ignore") is not None
    assert write(frame, destination, mode="ignore") is None
    assert read_manifest(destination).rows == 100


def test_mode_ignore_respects_data_that_no_job_wrote(frame: DataFrame, destination: str) -> None:
    frame.write.parquet(destination)
    assert write(frame, destination, mode="ignore") is None


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_mode_replace_leaves_only_the_new_data(
    frame: DataFrame, spark: SparkSession, destination: str, mode: str
) -> None:
    write(frame, destination, partition_by=["day"])
    receipt = write(frame.where("id < 10"), destination, mode=mode, partition_by=["day"])
    assert receipt is not None
    assert (receipt.rows, receipt.mode) == (10, "replace")
    assert receipt.removed_files > 0
    assert _ids(spark.read.parquet(destination)) == list(range(10))


def test_the_receipt_the_log_and_a_listing_agree(frame: DataFrame, destination: str, seen: Listing) -> None:
    receipt = write(frame, destination, partition_by=["day"])
    manifest = read_manifest(destination)
    assert receipt is not None
    assert seen() == sorted(manifest.files)
    assert receipt.files == len(manifest.files)
    assert receipt.size == sum((Path(destination) / key).stat().st_size for key in seen())
    assert receipt.rows == manifest.rows == 100


def test_a_second_write_with_a_job_name_replaces_the_first(
    frame: DataFrame, spark: SparkSession, destination: str
) -> None:
    write(frame, destination, job_name="nightly")
    write(frame.where("id < 7"), destination, job_name="other")
    receipt = write(frame.where("id >= 90"), destination, job_name="nightly")
    assert receipt is not None
    assert receipt.job_id == "nightly-g2"
    assert _ids(read(spark, destination)) == [*range(7), *range(90, 100)]


def test_nothing_is_visible_before_the_commit(
    frame: DataFrame, spark: SparkSession, destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    _save(frame, destination, partitionBy="day", commit="task", jobName="gated")
    assert seen() == []
    assert read_manifest(destination).files == {}
    assert len(open_uploads()) > 0
    (job,) = list_jobs(destination)
    assert (job.job_id, job.phase, job.lease) == ("gated-g1", JobPhase.OPEN, "suspended")

    receipt = attach_job(destination, job.job_id).commit()

    assert receipt.rows == 100
    assert seen() == sorted(read_manifest(destination).files)
    assert open_uploads() == []
    assert _ids(spark.read.parquet(destination)) == list(range(100))


def test_a_later_commit_publishes_exactly_the_attempts_that_spark_selected(
    frame: DataFrame, destination: str
) -> None:
    _save(frame.coalesce(1), destination, commit="task", jobName="gated")
    (summary,) = list_jobs(destination)
    job = attach_job(destination, summary.job_id)
    # A losing speculative attempt that outlives the winner writes the newest pending set of the task.
    with (
        job.attempt("part-00000", input_digest="loser") as attempt,
        attempt.open("part-loser.parquet") as file,
    ):
        file.write(b"not parquet")
    assert job.commit().rows == 100


def test_sorted_rows_make_one_file_per_task_and_partition(spark: SparkSession, destination: str) -> None:
    many = spark.range(250, numPartitions=1).selectExpr("id", "id % 50 AS day")
    receipt = write(many, destination, partition_by=["day"])
    assert receipt is not None
    assert (receipt.files, receipt.rows) == (50, 250)


def test_unsorted_rows_of_many_partitions_arrive_once_each(spark: SparkSession, destination: str) -> None:
    many = spark.range(500, numPartitions=1).selectExpr("id", "id % 50 AS day")
    receipt = write(
        many, destination, partition_by=["day"], sort_within_partitions=False, options={"maxOpenFiles": 40}
    )
    assert receipt is not None
    assert receipt.files >= 50
    assert _ids(spark.read.parquet(destination)) == list(range(500))


def test_file_options_are_applied_to_the_files(frame: DataFrame, destination: str, seen: Listing) -> None:
    import pyarrow.parquet as pq

    options = {"rowGroupRows": 10, "maxRecordsPerFile": 30}
    write(frame.coalesce(1), destination, compression="zstd", options=options)
    assert len(seen()) == 4
    footer = pq.read_metadata(Path(destination) / seen()[0])
    assert (footer.num_rows, footer.num_row_groups) == (30, 3)
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert seen()[0].endswith(".zstd.parquet")


def test_rows_and_statistics_are_in_the_pending_set(frame: DataFrame, destination: str) -> None:
    _save(frame.coalesce(1), destination, commit="task", jobName="gated")
    (job,) = list_jobs(destination)
    (pending,) = attach_job(destination, job.job_id).pending_sets()
    (file,) = pending.files
    assert file.rows == 100
    assert (file.statistics["id"].minimum, file.statistics["id"].maximum) == ("0", "99")
    assert file.statistics["id"].nulls == 0


def test_an_empty_data_frame_publishes_its_schema(
    frame: DataFrame, spark: SparkSession, destination: str
) -> None:
    receipt = write(frame.where("id < 0"), destination)
    assert receipt is not None
    assert (receipt.files, receipt.rows) == (1, 0)
    assert spark.read.parquet(destination).columns == ["id", "day", "text"]
    assert read(spark, destination).columns == ["id", "day", "text"]
    assert read(spark, destination).count() == 0


def test_append_refuses_incompatible_columns_by_default(
    frame: DataFrame, spark: SparkSession, destination: str
) -> None:
    write(frame, destination)
    wider = frame.selectExpr("id", "day", "text", "1.5D AS price")
    with pytest.raises(ConflictError, match="price is new"):
        write(wider, destination)
    write(wider, destination, evolve_schema=True)
    rows = read(spark, destination)
    assert rows.where("price IS NULL").count() == rows.where("price = 1.5").count() == 100


def test_several_frames_are_written_concurrently(spark: SparkSession, destination: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> object:
        rows = spark.range(number * 10, number * 10 + 10)
        return write(rows, destination, job_name=f"writer-{number}")

    with ThreadPoolExecutor(3) as pool:
        receipts = list(pool.map(one, range(3)))
    assert all(receipts)
    assert _ids(read(spark, destination)) == list(range(30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitionBy": "month"}, "partition column 'month' does not exist; the columns are id, day, text"),
        ({"partitionBy": "id,day,text"}, "all of them partition columns"),
        ({"mode": "upsert"}, "mode='upsert' is not known; use one of append, replace, fail"),
        ({"compresion": "zstd"}, "unknown option 'compresion'; known are"),
        ({"maxOpenFiles": "0"}, "maxOpenFiles='0' must be a whole number of at least 1"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_created(
    frame: DataFrame, destination: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        _save(frame, destination, **options)
    assert not Path(destination).exists()


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("INTERVAL '1' DAY", "interval day"),
        ("INTERVAL '1' YEAR", "interval year"),
        ("parse_json('{}')", "variant"),
        ("NULL", "void"),
        ("TIME'10:00:00'", "time"),
        ("array(named_struct('x', NULL))", "void"),
    ],
)
def test_an_unsupported_type_is_refused_before_anything_is_created(
    spark: SparkSession, destination: str, expression: str, kind: str
) -> None:
    odd = spark.range(1).selectExpr("id", f"{expression} AS odd")
    with pytest.raises(InvalidInputError, match=rf"column 'odd.*type {kind}"):
        write(odd, destination)
    with pytest.raises(AnalysisException, match="cast it"):
        _save(odd, destination)
    assert not Path(destination).exists()


def test_spark_refuses_partition_by_in_the_words_of_the_guide(frame: DataFrame, destination: str) -> None:
    with pytest.raises(PySparkException) as refused:
        frame.write.format("lockgate").mode("append").partitionBy("day").save(destination)

    said, _, _ = str(refused.value).removeprefix("requirement failed: ").partition(".")
    first_lines = GUIDE.read_text().splitlines()[:6]
    assert said in "\n".join(first_lines)
    assert not Path(destination).exists()


def test_write_refuses_an_unknown_mode_by_name(frame: DataFrame, destination: str) -> None:
    with pytest.raises(InvalidInputError, match=r"'upsert' is not known; use one of append, overwrite"):
        write(frame, destination, mode="upsert")  # type: ignore[arg-type]


def test_a_destination_that_is_a_file_is_refused(frame: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInputError, match="file"):
        write(frame, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_partition_value_that_is_no_valid_folder_name_fails_the_job_and_leaves_nothing(
    spark: SparkSession, destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    odd = spark.createDataFrame([(1, "fine"), (2, "Sa\u0303o")], "id int, city string")
    with pytest.raises(PySparkException, match="partition column 'city'"):
        write(odd, destination, partition_by=["city"], via="direct")
    with pytest.raises(InvalidInputError, match="must be in Unicode's NFC form"):
        write(odd, destination, partition_by=["city"], via="spark")
    assert seen() == []
    assert open_uploads() == []
    assert [job.phase for job in list_jobs(destination)] == [JobPhase.FAILED, JobPhase.FAILED]


def test_a_job_opened_by_another_process_is_not_taken_over(frame: DataFrame, destination: str) -> None:
    from lockgate import open_job

    with open_job(destination, "theirs") as job:
        address = {"jobId": job.job_id, "jobAttempt": job.job_attempt, "commit": "task"}
        broken = frame.selectExpr("id", "day", "cast(raise_error('broken') AS string) AS text")
        with pytest.raises(PySparkException, match="broken"):
            _save(broken, destination, **address)
        assert job.phase() is JobPhase.OPEN
        _save(frame, destination, **address)
        assert job.commit().rows == 100
