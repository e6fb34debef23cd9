"""Reading a stored object by ranges returns the object's bytes in few requests."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.parquet.store_file import READ_AHEAD_BYTES, StoreFile
from lockgate.storage_core.stores import open_store

DATA = bytes(range(256)) * 4096  # 1 MiB


class Counted:
    """A store that implements and counts the only call that reading needs."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: list[tuple[int, int]] = []

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        assert length is not None
        self.ranges.append((start, length))
        return self.data[start : start + length]


def _file(data: bytes = DATA) -> tuple[StoreFile, Counted]:
    store = Counted(data)
    return StoreFile(store, "a.parquet", len(data)), store  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, len(DATA) + 10), st.integers(-1, 400_000)), max_size=8))
def test_any_reads_return_what_a_file_in_memory_returns(reads: list[tuple[int, int]]) -> None:
    file, _ = _file()
    memory = io.BytesIO(DATA)
    for position, size in reads:
        assert file.seek(position) == memory.seek(position)
        assert file.read(size) == memory.read(size)
        assert file.tell() == memory.tell() or position > len(DATA)


def test_small_reads_side_by_side_cost_one_request() -> None:
    file, store = _file()
    assert b"".join(file.read(100) for _ in range(50)) == DATA[:5000]
    assert store.ranges == [(0, READ_AHEAD_BYTES)]


def test_reads_near_the_end_also_fetch_the_bytes_before_them() -> None:
    file, store = _file()
    file.seek(-8, io.SEEK_END)
    assert file.read(8) == DATA[-8:]
    file.seek(-5000, io.SEEK_END)
    assert file.read(4992) == DATA[-5000:-8]
    assert len(store.ranges) == 1


def test_an_empty_file_is_read_without_a_request() -> None:
    file, store = _file(b"")
    assert file.read() == b""
    assert store.ranges == []


@pytest.mark.parametrize("rows", [10, 200_000])
def test_arrow_reads_parquet_through_it(tmp_path: Path, rows: int) -> None:
    table = pa.table({"id": pa.array(range(rows)), "text": pa.array([f"row {n}" for n in range(rows)])})
    pq.write_table(table, tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    file = StoreFile(open_store(str(tmp_path)), "a.parquet", size)
    assert pq.ParquetFile(pa.PythonFile(file, mode="r")).read(["text"]) == table.select(["text"])
