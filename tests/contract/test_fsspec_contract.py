"""pandas, Polars, PyArrow and DuckDB through the fsspec file system, over every store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.fsspec.filesystem import LockgateFileSystem, job_filesystem
from lockgate.storage_core.stores import Store
from tests.support.commit.destination import World

DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "fsspec.md"
TABLE = pa.table({"id": pa.array(range(10), pa.int64()), "day": ["mon", "tue"] * 5})
ROWS = sorted(TABLE.to_pylist(), key=lambda row: row["id"])
DAY = ds.partitioning(pa.schema([("day", pa.string())]), flavor="hive")

Writer = Callable[[LockgateFileSystem, str], None]
Reader = Callable[[LockgateFileSystem, str], pa.Table]


@pytest.fixture
def world(
    kind: str,
    open_at: Callable[[str], Store],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """Return an empty destination in the kind of store under test."""
    monkeypatch.setenv("LOCKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCKGATE_S3_REGION", "us-east-1")
    if kind in {"moto", "fake-s3"}:
        endpoint = request.getfixturevalue(f"{kind.removesuffix('-s3')}_endpoint")
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", endpoint)
    elif kind == "s3-server":
        monkeypatch.setenv("LOCKGATE_S3_ENDPOINT_URL", os.environ["LOCKGATE_TEST_S3_ENDPOINT"])
    return World(tmp_path, open_at("dataset").url)


def pandas_writes(fs: LockgateFileSystem, root: str) -> None:
    TABLE.to_pandas().to_parquet(f"{root}/a.parquet", filesystem=fs, index=False)


def pandas_writes_partitions(fs: LockgateFileSystem, root: str) -> None:
    TABLE.to_pandas().to_parquet(root, partition_cols=["day"], filesystem=fs, index=False)


def polars_writes(fs: LockgateFileSystem, root: str) -> None:
    with fs.open(f"{root}/a.parquet", "wb") as file:
        pl.DataFrame(TABLE).write_parquet(file)


def polars_writes_by_pyarrow(fs: LockgateFileSystem, root: str) -> None:
    pl.DataFrame(TABLE).write_parquet(
        f"{root}/a.parquet", use_pyarrow=True, pyarrow_options={"filesystem": fs}
    )


def pyarrow_writes_partitions(fs: LockgateFileSystem, root: str) -> None:
    ds.write_dataset(TABLE, root, format="parquet", partitioning=DAY, filesystem=fs)


def duckdb_writes(fs: LockgateFileSystem, root: str, options: str = "") -> None:
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        connection.register("sales", TABLE)
        url = fs.unstrip_protocol(root)
        connection.execute(f"COPY sales TO '{url}/a.parquet' (FORMAT parquet{options})")


def duckdb_writes_partitions(fs: LockgateFileSystem, root: str) -> None:
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        connection.register("sales", TABLE)
        url = fs.unstrip_protocol(root)
        connection.execute(f"COPY sales TO '{url}' (FORMAT parquet, PARTITION_BY (day))")


def pandas_reads(fs: LockgateFileSystem, path: str) -> pa.Table:
    return pa.Table.from_pandas(pd.read_parquet(path, filesystem=fs), preserve_index=False)


def polars_reads(fs: LockgateFileSystem, path: str) -> pa.Table:
    return pl.scan_pyarrow_dataset(ds.dataset(path, partitioning="hive", filesystem=fs)).collect().to_arrow()


def pyarrow_reads(fs: LockgateFileSystem, path: str) -> pa.Table:
    return ds.dataset(path, partitioning="hive", filesystem=fs).to_table()


def duckdb_reads(fs: LockgateFileSystem, path: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        url = fs.unstrip_protocol(path)
        query = f"FROM read_parquet('{url}/**/*.parquet', hive_partitioning=true)"
        return connection.sql(query).to_arrow_table()


WRITERS: Mapping[str, Writer] = {
    writer.__name__: writer
    for writer in (
        pandas_writes,
        pandas_writes_partitions,
        polars_writes,
        polars_writes_by_pyarrow,
        pyarrow_writes_partitions,
        duckdb_writes,
        duckdb_writes_partitions,
    )
}
READERS: tuple[Reader, ...] = (pandas_reads, polars_reads, pyarrow_reads, duckdb_reads)


def new_fs(**options: object) -> LockgateFileSystem:
    return LockgateFileSystem(**options)


def path_of(world: World) -> str:
    """Return the destination as a path of the file system."""
    return str(LockgateFileSystem._strip_protocol(world.url))


def rows(table: pa.Table) -> list[dict[str, object]]:
    found = [{name: row[name] for name in ("id", "day")} for row in table.to_pylist()]
    return sorted(found, key=lambda row: row["id"])  # type: ignore[arg-type, return-value]


def test_files_of_each_library_are_pending_until_the_job_commits_and_then_readable_by_all(
    world: World,
) -> None:
    with world.open_job("day") as job:
        for name, writer in WRITERS.items():
            with job_filesystem(job, name) as (fs, root):
                writer(fs, f"{root}/by={name}")
                assert fs.find(root) != []
        assert world.keys() == {}
        assert new_fs().find(path_of(world)) == []
        assert len(world.open_uploads()) == sum(len(task.files) for task in job.pending_sets())
        job.commit()
    assert world.open_uploads() == []
    assert world.live() == world.keys() != {}
    fs = new_fs()
    for reader in READERS:
        for name in WRITERS:
            assert rows(reader(fs, f"{path_of(world)}/by={name}")) == ROWS, (reader.__name__, name)


def test_each_library_reads_the_newest_turn_and_an_older_one(world: World) -> None:
    first, second = TABLE.slice(0, 4), TABLE.slice(4)
    for name, table in (("one", first), ("two", second)):
        with world.open_job(name, mode="replace") as job:
            with job_filesystem(job, "part-0") as (fs, root):
                pq.write_table(table, f"{root}/a.parquet", filesystem=fs)
            job.commit()
    newest = new_fs()
    for reader in READERS:
        assert rows(reader(newest, path_of(world))) == rows(second), reader.__name__
    world.keep(turns=1)
    with world.open_job("three", mode="replace") as job:
        with job_filesystem(job, "part-0") as (fs, root):
            pq.write_table(first, f"{root}/a.parquet", filesystem=fs)
        job.commit()
    for reader in READERS:
        assert rows(reader(newest, path_of(world))) == rows(first), reader.__name__
        assert rows(reader(new_fs(as_of=2), path_of(world))) == rows(second), reader.__name__


def test_a_library_that_fails_half_way_leaves_nothing(world: World) -> None:
    query = "SELECT CASE WHEN id > 300000 THEN error('boom') ELSE id END AS id FROM range(1000000) t(id)"

    def copy(job: Job) -> None:
        with job_filesystem(job, "part-0") as (fs, root), duckdb.connect() as connection:
            connection.register_filesystem(fs)
            url = fs.unstrip_protocol(root)
            with pytest.raises(duckdb.Error, match="boom"):
                connection.execute(f"COPY ({query}) TO '{url}/half.parquet' (FORMAT parquet)")
            assert fs.find(root) == []

    with world.open_job("day") as job:
        # DuckDB 1.5 leaves the file open, so the task cannot be committed by mistake.
        with pytest.raises(InvalidInputError, match=r"'half\.parquet' was not closed"):
            copy(job)
        with job_filesystem(job, "part-0") as (fs, root):
            pandas_writes(fs, root)
        job.commit()
    assert rows(pyarrow_reads(new_fs(), path_of(world))) == ROWS
    assert world.open_uploads() == []


def test_the_examples_of_the_documentation_run_unchanged(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))
    code = code.replace("s3://lake/sales", world.url).replace("s3/lake/sales", path_of(world))
    exec(compile(code, DOCUMENT.name, "exec"), {})
    writers = [key.partition("/")[0] for key in world.live()]
    assert sorted(writers) == [
        *["from=duckdb"] * 2,
        *["from=ids"] * 2,
        "from=pandas",
        "from=polars",
        *["from=pyarrow"] * 2,
    ]
    assert "mon" in capsys.readouterr().out
