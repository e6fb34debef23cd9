"""Compaction: the same rows in fewer files, by one job that replaces exactly what it has read."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from lockgate.storage_core.compaction import compact as compact_module
from lockgate.storage_core.compaction.merge import merge_here
from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import Crash, World, dying, plain
from tests.support.compaction.tables import compacted, numbers, parquet, rows
from tests.support.s3.destination import s3_world

MIB = 1024 * 1024


def files_of(world: World, folder: str = "") -> list[str]:
    return sorted(plain(key) for key in world.live() if key.startswith(folder))


def only_table(world: World, folder: str) -> pq.ParquetFile:
    (key,) = [key for key in world.live() if key.startswith(folder)]
    return pq.ParquetFile(BytesIO(world.store.get(key)))


def add(world: World, name: str, *data: bytes, folder: str = "day=1") -> None:
    world.run(name, {f"{folder}/{number}.parquet": each for number, each in enumerate(data)})


def test_small_files_of_each_partition_become_one_with_the_same_rows(world: World) -> None:
    for number in range(4):
        add(world, f"job-{number}", numbers(number), numbers(number + 10))
        add(world, f"other-{number}", numbers(number + 20), folder="day=2/hour=1")
    add(world, "single", numbers(99), folder="day=3")
    before = rows(world)
    steps: list[tuple[str, int, int]] = []
    done = compacted(world, progress=lambda *step: steps.append(step))
    assert rows(world) == before
    assert [(one.partition, one.files, one.into) for one in done.merged] == [
        ("day=1", 8, 1),
        ("day=2/hour=1", 4, 1),
    ]
    assert (done.files_before, done.files_after, len(world.live())) == (13, 3, 3)
    assert done.receipt is not None
    assert (done.receipt.mode, done.receipt.files, done.receipt.removed_files) == ("compact", 2, 12)
    assert ("merge", 2, 2) in steps
    assert world.keys() == world.live()
    # In the order of their publication.
    assert only_table(world, "day=2").read()["n"].to_pylist() == [20, 21, 22, 23]
    assert compacted(world).receipt is None


def test_files_of_the_target_size_are_left_and_new_ones_are_no_larger(world: World) -> None:
    size = len(numbers(1))
    large = numbers(*range(10_000))
    add(world, "job", large, *(numbers(number) for number in range(1, 6)))
    done = compacted(world, target_bytes=2 * size + 1)
    assert [(one.files, one.into) for one in done.merged] == [(4, 2)]
    assert len(large) in world.live().values()
    assert done.files_after == 4


def test_a_dry_run_says_what_would_be_merged_and_writes_nothing(world: World) -> None:
    add(world, "job", numbers(1), numbers(2))
    before = {page.key for pages in world.store.pages() for page in pages}
    done = compacted(world, dry_run=True)
    assert (done.files_before, done.files_after, done.receipt) == (2, 1, None)
    assert {page.key for pages in world.store.pages() for page in pages} == before


def test_only_the_named_partitions_are_merged(world: World) -> None:
    for folder in ("day=1", "day=2/hour=1", "day=2/hour=2"):
        add(world, f"job-{folder[-6:].replace('/', '-')}", numbers(1), numbers(2), folder=folder)
    assert [one.partition for one in compacted(world, partitions=["day=2"]).merged] == [
        "day=2/hour=1",
        "day=2/hour=2",
    ]
    with pytest.raises(
        InvalidInputError, match=r"no live file is in partition 'day=3'.*there are day=1, day=2"
    ):
        compacted(world, partitions=["day=3"])


def test_an_empty_destination_has_nothing_to_merge(world: World) -> None:
    assert compacted(world).merged == ()
    assert not Path(world.url).exists()


def test_files_of_an_evolved_schema_are_merged_as_the_reader_reads_them(world: World) -> None:
    add(world, "old", parquet(pa.table({"n": pa.array([1], pa.int32()), "gone": ["x"]}), compression="zstd"))
    spark = {b"org.apache.spark.sql.parquet.row.metadata": b"{}"}
    table = pa.table({"new": ["y", None], "n": pa.array([2, 2**40], pa.int64())}).replace_schema_metadata(
        spark
    )
    add(world, "new", parquet(table, compression="gzip"))
    add(world, "unfit", parquet(pa.table({"n": ["text"]})), folder="day=1")
    add(world, "newest", parquet(table.slice(0, 1), compression="gzip"))
    done = compacted(world)
    assert [(plain(one.key), one.reason) for one in done.left] == [
        ("day=1/0.parquet", "its columns do not fit those of newer files in its partition")
    ]
    merged = next(pq.ParquetFile(BytesIO(world.store.get(key))) for key in world.live() if "compact" in key)
    assert merged.schema_arrow.names == ["new", "n", "gone"]
    assert merged.schema_arrow.field("n").type == pa.int64()
    assert merged.read().to_pylist() == [
        {"new": None, "n": 1, "gone": "x"},
        {"new": "y", "n": 2, "gone": None},
        {"new": None, "n": 2**40, "gone": None},
        {"new": "y", "n": 2, "gone": None},
    ]
    assert merged.metadata.row_group(0).column(0).compression == "GZIP"


def test_what_cannot_be_read_is_left_and_said(world: World, tmp_path: Path) -> None:
    whole = parquet(
        pa.table({"n": list(range(5000)), "text": [str(n) for n in range(5000)]}), compression="snappy"
    )
    damaged = whole[:50] + bytes(4000) + whole[4050:]
    add(world, "job", numbers(1), numbers(2), b"not Parquet", encrypted(), damaged)
    world.run("text", {"day=1/notes.csv": b"1\n"})
    world.run("instants", {"day=1/hive.parquet": int96()})
    interval = str(tmp_path / "interval.parquet")
    duckdb.sql(f"COPY (SELECT 3 AS n, INTERVAL 1 DAY AS text) TO '{interval}'")
    world.run("interval", {"day=1/duck.parquet": Path(interval).read_bytes()})
    before = world.visible()
    done = compacted(world)
    left = {plain(one.key): one.reason for one in done.left}
    assert left.keys() == {
        f"day=1/{name}"
        for name in ("2.parquet", "3.parquet", "4.parquet", "notes.csv", "hive.parquet", "duck.parquet")
    }
    assert left["day=1/notes.csv"] == "it is not Parquet"
    assert "cannot be read" in left["day=1/4.parquet"]
    assert "INT96" in left["day=1/hive.parquet"]
    assert "INTERVAL" in left["day=1/duck.parquet"]
    after = world.visible()
    assert all(after[key] == before[key] for key in left)
    assert [(one.files, one.into) for one in done.merged] == [(2, 1)]
    assert only_compacted(world) == [1, 2]


def only_compacted(world: World) -> list[int]:
    (key,) = [key for key in world.live() if "compact" in key]
    values: list[int] = pq.read_table(BytesIO(world.store.get(key)))["n"].to_pylist()
    return values


def encrypted() -> bytes:
    class Kms(pe.KmsClient):  # type: ignore[misc]
        def __init__(self, _: object) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, _: str) -> str:
            return key.hex()

        def unwrap_key(self, key: str, _: str) -> bytes:
            return bytes.fromhex(key)

    config = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"key": ["n"]}, plaintext_footer=True
    )
    properties = pe.CryptoFactory(Kms).file_encryption_properties(pe.KmsConnectionConfig(), config)
    return parquet(pa.table({"n": [1], "text": ["secret"]}), encryption_properties=properties)


def int96() -> bytes:
    moment = pa.array([0], pa.timestamp("ns"))
    return parquet(pa.table({"at": moment}), use_deprecated_int96_timestamps=True)


def test_spark_timestamps_of_the_old_kind_stay_instants(world: World) -> None:
    spark = {b"org.apache.spark.sql.parquet.row.metadata": b"{}", b"org.apache.spark.version": b"4.0.0"}
    table = pa.table(
        {"at": pa.array([1_700_000_000_123_456_000], pa.timestamp("ns"))}
    ).replace_schema_metadata(spark)
    data = parquet(table, use_deprecated_int96_timestamps=True)
    add(world, "job", data, data)
    assert compacted(world).left == ()
    at = only_table(world, "day=1").read()["at"]
    assert at.type == pa.timestamp("us", "UTC")
    assert at.cast(pa.int64()).to_pylist() == [1_700_000_000_123_456] * 2


def test_a_partition_that_is_replaced_meanwhile_aborts_the_compaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(world, "job", numbers(1), numbers(2))

    def merge(*arguments: object) -> object:
        yield from merge_here(*arguments)  # type: ignore[arg-type]
        world.run("other", {"day=1/new.parquet": numbers(7)}, mode="replace", scope="partitions")
        world.run("appended", {"day=1/more.parquet": numbers(8)})

    monkeypatch.setattr(compact_module, "merge_here", merge)
    with pytest.raises(ConflictError, match=r"2 of the 2 files .* run the compaction again"):
        compacted(world)
    monkeypatch.undo()
    assert [row[1] for row in rows(world)] == [7, 8]
    assert world.open_uploads() == []
    assert compacted(world).files_after == 1
    assert [row[1] for row in rows(world)] == [7, 8]


@pytest.mark.parametrize("changed", [False, True])
def test_a_retry_takes_what_an_earlier_try_has_merged_if_no_file_has_changed(
    world: World, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    add(world, "job", numbers(1), numbers(2))
    add(world, "other", numbers(3), numbers(4), folder="day=2")

    class Killed(BaseException):
        pass

    merged: list[str] = []

    def merge(settings: object, job: object, groups: list[object]) -> object:
        for done in merge_here(settings, job, groups):  # type: ignore[arg-type]
            merged.append(done.task_id)
            if len(merged) == 1:
                job.close()  # type: ignore[attr-defined]
                raise Killed
            yield done

    monkeypatch.setattr(compact_module, "merge_here", merge)
    parallel = World(world.root, world.url, world.clock, {**world.options, "parallelism": 1})
    with pytest.raises(Killed):
        compacted(parallel, name="nightly")
    if changed:
        for key in world.live():
            path = Path(world.url, key)
            path.write_bytes(path.read_bytes().replace(b"row 1", b"row 9"))
    before = rows(world)
    done = compacted(parallel, name="nightly")
    assert len(set(merged)) == len(merged) == 2 + changed
    assert rows(world) == before
    assert done.receipt is not None
    assert done.receipt.job_id == "nightly-g1"


def test_a_retry_of_a_decided_compaction_ends_it_and_counts_what_is_there_then(world: World) -> None:
    def die(point: str) -> None:
        if point == "decide.create.after":
            raise Crash

    add(world, "job", numbers(1), numbers(2), numbers(3))
    before = rows(world)
    FAILPOINTS.observer = dying(die)
    try:
        with pytest.raises(Crash):
            compacted(world, name="nightly")
    finally:
        FAILPOINTS.observer = None
    done = compacted(world, name="nightly")
    assert done.receipt is not None
    assert (done.files_before, done.files_after, done.merged) == (1, 1, ())
    assert rows(world) == before


def test_small_files_are_merged_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_world(tmp_path, monkeypatch) as s3:
        add(s3.driver, "job", numbers(1), numbers(2), numbers(3))
        before = rows(s3.driver)
        done = compacted(s3.driver)
        assert (done.files_before, done.files_after) == (3, 1)
        assert rows(s3.other) == before
        assert s3.other.keys() == s3.other.live()
