"""Tests of `write` by Spark's own writer: the way that is chosen, and uploads beside the stage."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lockgate import open_job, read_manifest
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.expected_tasks import StagedFile
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.staged_files import list_staged
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.data_source import read
from lockgate.storage_core.spark.frame_write import Via, write
from lockgate.storage_core.spark.stage_uploads import StageUploads
from lockgate.storage_core.stores import UploadInfo

pytestmark = pytest.mark.integration

Listing = Callable[[], list[str]]
Uploads = Callable[[], list[UploadInfo]]


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(100, numPartitions=4).selectExpr("id", "id % 3 AS day", "cast(id AS string) AS text")


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_all_ways_publish_the_same_rows_and_the_receipt_names_the_way(
    frame: DataFrame, spark: SparkSession, destination: str, open_uploads: Uploads, partition_by: list[str]
) -> None:
    staged = write(frame, f"{destination}/staged", partition_by=partition_by)
    others: list[Via] = ["direct", "spark"]
    receipts = [
        staged,
        *(write(frame, f"{destination}/{way}", partition_by=partition_by, via=way) for way in others),
    ]
    assert [receipt and (receipt.via, receipt.rows) for receipt in receipts] == [
        ("staged", 100),
        ("direct", 100),
        ("spark", 100),
    ]
    rows = [
        sorted(map(tuple, read(spark, f"{destination}/{way}").select("id", "day", "text").collect()))
        for way in ("staged", *others)
    ]
    assert rows[0] == rows[1] == rows[2]
    with_rows = [file.rows for file in read_manifest(f"{destination}/staged").files.values()]
    assert None not in with_rows
    assert open_uploads() == []


def test_a_staged_file_becomes_the_published_one_without_a_copy(
    frame: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inodes: list[int] = []
    commit = StageUploads.commit

    def noted(uploads: StageUploads, files: list[StagedFile], *rest: object) -> object:
        inodes.extend((uploads._staging / file.path).stat().st_ino for file in files)
        return commit(uploads, files, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(StageUploads, "commit", noted)
    destination = tmp_path / "lake"
    write(frame, str(destination), partition_by=["day"])
    published = [file for file in destination.rglob("*.parquet") if "_lockgate" not in file.parts]
    assert sorted(file.stat().st_ino for file in published) == sorted(inodes)
    assert {file.stat().st_mode & 0o777 for file in published} == {0o666 & ~_umask()}
    assert not (destination / "_temporary").exists()


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ({}, "staged"),
        ({"options": {"maxRecordsPerFile": 10}}, "staged"),
        ({"compression": "lz4"}, "staged"),
        ({"compression": "none"}, "staged"),
        ({"options": {"rowGroupRows": 10}}, "direct"),
        ({"options": {"partBytes": 8 * 1024 * 1024}}, "direct"),
        ({"sort_within_partitions": False}, "staged"),
        ({"sort_within_partitions": False, "partition_by": ["day"]}, "direct"),
    ],
)
def test_the_way_follows_from_what_the_options_need(
    frame: DataFrame, spark: SparkSession, destination: str, given: dict[str, object], way: str
) -> None:
    receipt = write(frame, destination, **given)  # type: ignore[arg-type]
    assert receipt is not None
    assert (receipt.via, receipt.rows) == (way, 100)
    if "options" in given and way == "staged":
        assert receipt.files == 12  # four Spark tasks of 25 rows, at most 10 in a file
    assert read(spark, destination).count() == 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"via": "magic"}, "via 'magic' is not known; use one of auto, spark, staged, direct"),
        ({"via": "staged", "options": {"rowGroupRows": 10}}, "does not go with the options rowGroupRows"),
        ({"via": "direct", "staging": "/tmp/x"}, "via='direct' stages nothing"),
        ({"via": "direct", "options": {"parquet.block.size": 1}}, "parquet.block.size of Spark's own writer"),
        ({"via": "spark", "options": {"rowGroupRows": 10}}, "does not go with the options rowGroupRows"),
    ],
)
def test_a_way_that_is_not_possible_is_refused_before_a_job_begins(
    frame: DataFrame, destination: str, given: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        write(frame, destination, **given)  # type: ignore[arg-type]
    assert list(list_jobs(destination)) == []


def test_files_of_a_task_are_uploaded_while_another_task_still_writes(
    spark: SparkSession, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    begin = StageUploads._begin

    def noted(uploads: StageUploads, *rest: object) -> None:
        written.append(len(list(uploads._staging.glob("_temporary/*/task_*"))))
        begin(uploads, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(StageUploads, "_begin", noted)
    rows = spark.range(2, numPartitions=2).selectExpr(
        "id", "if(id = 1, java_method('java.lang.Thread', 'sleep', 3000L), 'at once') AS text"
    )
    receipt = write(rows, destination, via="staged")
    assert receipt is not None
    assert receipt.rows == 2
    assert written[0] == 1  # the second Spark task had not committed yet


def test_a_stage_that_spark_gives_up_leaves_no_job_data_and_no_upload(
    spark: SparkSession, destination: str, seen: Listing, open_uploads: Uploads
) -> None:
    broken = spark.range(4, numPartitions=4).selectExpr(
        "id", "if(id = 3, raise_error('broken'), 'fine') AS text"
    )
    with pytest.raises(PySparkException, match="broken"):
        write(broken, destination, via="staged")
    assert (seen(), open_uploads()) == ([], [])
    assert [job.phase for job in list_jobs(destination)] == [JobPhase.FAILED]


def test_an_upload_of_a_file_that_another_try_replaced_is_dropped(destination: str, tmp_path: Path) -> None:
    staging = tmp_path / "stage"
    committed = staging / "_temporary" / "0" / "task_1"
    committed.mkdir(parents=True)
    for name in ("kept.csv", "replaced.csv", "lost.csv"):
        (committed / name).write_bytes(b"first")
    with open_job(destination, "tries") as job:
        with StageUploads(job, staging) as uploads:
            deadline = time.monotonic() + 20
            while len(uploads._uploads) < 3 and time.monotonic() < deadline:
                time.sleep(0.05)
            (committed / "kept.csv").rename(staging / "kept.csv")
            (staging / "replaced.csv").write_bytes(b"second")
            (staging / "late.csv").write_bytes(b"late")
            (staging / "_SUCCESS").touch()
            winners = uploads.commit(list_staged(staging))
        job.commit(winners=winners)
    contents = {
        file.key.rpartition("/")[2].partition("-")[0].partition(".")[0]: job.store.get(key)
        for key, file in read_manifest(destination).files.items()
    }
    assert contents == {"kept": b"first", "replaced": b"second", "late": b"late"}


def test_a_folder_that_spark_moves_during_a_look_ends_no_look(
    destination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, glob, looks = tmp_path / "stage", Path.glob, list[str]()

    def moved_once(folder: Path, pattern: str) -> Iterator[Path]:
        looks.append(pattern)
        if len(looks) == 1:
            raise FileNotFoundError(2, "No such file or directory", str(folder / "_temporary" / "0"))
        return iter(glob(folder, pattern))

    monkeypatch.setattr(Path, "glob", moved_once)
    committed = staging / "_temporary" / "0" / "task_1"
    committed.mkdir(parents=True)
    (committed / "a.csv").write_bytes(b"a")
    with open_job(destination, "moved") as job, StageUploads(job, staging) as uploads:
        deadline = time.monotonic() + 20
        while not uploads._uploads and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(uploads._uploads) == ["a.csv"]
        job.abort("test")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
