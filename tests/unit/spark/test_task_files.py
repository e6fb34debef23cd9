"""Writing a task's rows to files: partitions, few open files, row groups, statistics. No Spark, no store."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.commit.uploads.parquet_footer import statistics_in_tail
from lockgate.storage_core.parquet.parquet_file import FileOptions
from lockgate.storage_core.spark.schema.columns import nullable_schema
from lockgate.storage_core.spark.writer.partition_files import TaskFiles, split

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass
class Kept:
    """A pending file in memory."""

    data: bytearray = field(default_factory=bytearray)
    rows: int | None = None
    closed: bool = False

    def write(self, data: memoryview, /) -> int:
        assert not self.closed
        self.data += data
        return len(data)

    def close(self) -> None:
        self.closed = True

    def read(self) -> pa.Table:
        return pq.read_table(io.BytesIO(self.data), partitioning=None)


@dataclass
class Destination:
    """All pending files of a task by path; counts the files open at the same time."""

    files: dict[str, Kept] = field(default_factory=dict)
    most_open: int = 0

    def open(self, path: str) -> Kept:
        assert path not in self.files
        self.files[path] = Kept()
        self.most_open = max(self.most_open, sum(not file.closed for file in self.files.values()))
        return self.files[path]

    def rows(self) -> list[tuple[str, int]]:
        return sorted(
            (path.rpartition("/")[0], value.as_py())
            for path, file in self.files.items()
            for value in file.read()["id"]
        )


def _task(destination: Destination, *, partition_by: tuple[str, ...] = (), **options: object) -> TaskFiles:
    return TaskFiles(
        destination.open,
        task=3,
        schema=SCHEMA,
        partition_by=partition_by,
        options=FileOptions(**options),  # type: ignore[arg-type]
        keep_empty=False,
    )


def _batch(ids: range, days: list[object] | None = None) -> pa.RecordBatch:
    columns = {"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{n}" for n in ids])}
    if days is not None:
        columns["day"] = pa.array(days)
    return pa.RecordBatch.from_pydict(columns)


def test_rows_without_partitions_make_one_file_with_the_tasks_number() -> None:
    there = Destination()
    with _task(there) as task:
        task.add(_batch(range(3)))
        task.add(_batch(range(3, 5)))
    (path,) = there.files
    assert path == "part-00003-0000.snappy.parquet"
    assert there.files[path].read()["id"].to_pylist() == [0, 1, 2, 3, 4]
    assert there.files[path].rows == 5
    assert there.files[path].closed


def test_every_row_is_written_to_its_partition_once_without_the_partition_column() -> None:
    there = Destination()
    days = ["a/b", None, "a/b", "", "ü", "a/b"]
    with _task(there, partition_by=("day",)) as task:
        task.add(_batch(range(6), days))
    assert there.rows() == [
        ("day=__HIVE_DEFAULT_PARTITION__", 1),
        ("day=__HIVE_DEFAULT_PARTITION__", 3),
        ("day=a%2Fb", 0),
        ("day=a%2Fb", 2),
        ("day=a%2Fb", 5),
        ("day=ü", 4),
    ]
    assert all("day" not in file.read().column_names for file in there.files.values())


def test_a_null_and_an_empty_string_share_one_file() -> None:
    there = Destination()
    with _task(there, partition_by=("day",)) as task:
        task.add(_batch(range(2), [None, ""]))
    assert len(there.files) == 1


def test_rows_keep_their_order_within_a_partition() -> None:
    batch = _batch(range(1000), [n % 7 for n in range(1000)])
    for folder, rows in split(batch, ["day"], SCHEMA):
        ids = rows.column("id").to_pylist()
        assert ids == sorted(ids)
        assert {f"day={n % 7}" for n in ids} == {folder}


def test_many_partition_columns_with_many_values_do_not_overflow() -> None:
    columns = {f"p{n}": pa.array([f"{n}-{row}" for row in range(2000)]) for n in range(8)}
    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(2000)), **columns})
    assert len(list(split(batch, list(columns), pa.schema([("id", pa.int64())])))) == 2000


def test_more_partitions_than_the_limit_close_the_least_recently_used_file() -> None:
    there = Destination()
    with _task(there, partition_by=("day",), max_open_files=4, row_group_rows=1) as task:
        for start in range(0, 60, 10):
            task.add(_batch(range(start, start + 10), list(range(10))))
    assert there.most_open == 4
    assert len(there.rows()) == 60
    assert len({path.rpartition("/")[2] for path in there.files}) == len(there.files)


def test_sorted_rows_make_one_file_a_partition_whatever_the_limit() -> None:
    there = Destination()
    with _task(there, partition_by=("day",), max_open_files=1) as task:
        for day in range(20):
            task.add(_batch(range(day * 5, day * 5 + 5), [day] * 5))
    assert len(there.files) == 20
    assert there.most_open == 1


def test_a_file_holds_at_most_the_configured_number_of_rows() -> None:
    there = Destination()
    with _task(there, max_records_per_file=4) as task:
        task.add(_batch(range(10)))
        task.add(_batch(range(10, 12)))
    assert [file.rows for file in there.files.values()] == [4, 4, 4]


def test_batches_are_combined_into_row_groups_of_the_requested_size() -> None:
    there = Destination()
    with _task(there, row_group_rows=7) as task:
        for start in range(0, 20, 4):
            task.add(_batch(range(start, start + 4)))
    (file,) = there.files.values()
    footer = pq.read_metadata(io.BytesIO(file.data))
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [7, 7, 6]


def test_buffered_rows_of_all_open_files_are_bounded_in_total() -> None:
    there = Destination()
    limit = 2000
    task = _task(there, partition_by=("day",), row_group_bytes=limit)
    for _ in range(50):
        task.add(_batch(range(64), list(range(64))))
        assert task.buffered_bytes <= 4 * limit
    task.close()
    assert len(there.rows()) == 50 * 64


def test_rows_and_statistics_are_recorded_with_the_file() -> None:
    there = Destination()
    batch = pa.RecordBatch.from_pydict(
        {"id": pa.array([5, None, 9]), "name": pa.array([None, None, None], "string")}
    )
    with _task(there) as task:
        task.add(batch)
    (file,) = there.files.values()
    found = statistics_in_tail(bytes(file.data), "a.parquet")
    assert found is not None
    assert (found[0], file.rows) == (3, 3)
    assert found[1]["id"] == ColumnStatistics(type="int64", nulls=1, minimum="5", maximum="9")
    assert found[1]["name"] == ColumnStatistics(type="string", nulls=3)


def test_a_long_value_is_left_out_of_the_statistics() -> None:
    there = Destination()
    with _task(there) as task:
        task.add(pa.RecordBatch.from_pydict({"id": pa.array([1]), "name": pa.array(["x" * 1000])}))
    (file,) = there.files.values()
    found = statistics_in_tail(bytes(file.data), "a.parquet")
    assert found is not None
    assert found[1]["name"] == ColumnStatistics(type="string", nulls=0)


def test_only_columns_with_repeated_values_have_a_dictionary() -> None:
    there = Destination()
    with _task(there) as task:
        task.add(
            pa.RecordBatch.from_pydict(
                {"id": pa.array(range(5000)), "name": pa.array([f"n{n % 10}" for n in range(5000)])}
            )
        )
    (file,) = there.files.values()
    group = pq.read_metadata(io.BytesIO(file.data)).row_group(0)
    assert not group.column(0).has_dictionary_page
    assert group.column(1).has_dictionary_page


@pytest.mark.parametrize(("keep_empty", "files"), [(True, 1), (False, 0)])
def test_a_first_task_without_rows_records_the_columns(keep_empty: bool, files: int) -> None:
    there = Destination()
    options = {"task": 0, "schema": SCHEMA, "partition_by": (), "options": FileOptions()}
    with TaskFiles(there.open, keep_empty=keep_empty, **options):  # type: ignore[arg-type]
        pass
    assert len(there.files) == files
    assert all(file.read().schema.names == ["id", "name"] for file in there.files.values())


def test_an_error_seals_no_file_and_writes_no_footer() -> None:
    there = Destination()
    task = _task(there, row_group_rows=1)
    task.add(_batch(range(1)))
    with pytest.raises(ZeroDivisionError), task:
        _ = 1 // 0
    (file,) = there.files.values()
    assert not file.closed
    assert not file.data.endswith(b"PAR1", 4)


def test_a_null_struct_with_fields_that_are_declared_not_null_is_written() -> None:
    declared = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    child = pa.array([1, None], pa.int32())
    structs = pa.StructArray.from_arrays([child], fields=list(declared), mask=pa.array([False, True]))
    schema = pa.schema([pa.field("s", declared), pa.field("m", pa.map_(pa.string(), declared))])
    maps = pa.nulls(2, schema.field("m").type)
    there = Destination()
    options = FileOptions()
    with TaskFiles(
        there.open, task=0, schema=nullable_schema(schema), partition_by=(), options=options, keep_empty=False
    ) as task:
        task.add(pa.RecordBatch.from_arrays([structs, maps], schema=schema))
    (file,) = there.files.values()
    assert file.read().to_pylist() == [{"s": {"a": 1}, "m": None}, {"s": None, "m": None}]


def test_a_failed_row_group_leaves_no_warnings_and_no_sealed_file() -> None:
    schema = pa.schema([pa.field("s", pa.int64(), nullable=False)])
    there = Destination()
    task = TaskFiles(
        there.open, task=0, schema=schema, partition_by=(), options=FileOptions(), keep_empty=False
    )
    task.add(pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=schema))
    with pytest.raises(pa.ArrowInvalid), task:
        pass
    assert [file.closed for file in there.files.values()] == [False]
