"""A Parquet footer that cannot be read costs the statistics, not the file, and the log says why."""

from __future__ import annotations

import logging
import sys
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockgate.storage_core.commit.uploads import parquet_footer
from lockgate.storage_core.commit.uploads.parquet_footer import statistics_in_tail


def parquet(**columns: pa.Array) -> bytes:
    written = BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


WHOLE = parquet(a=pa.array([1, 2, 3]))


@pytest.mark.parametrize(
    "tail",
    [
        b"PAR1",
        WHOLE[-12:],
        WHOLE[:-8] + bytes(4) + b"PAR1",
        WHOLE[:-20] + b"\xff" * 12 + WHOLE[-8:],
    ],
    ids=["only the mark", "longer than the tail", "no length", "damaged"],
)
def test_a_footer_that_cannot_be_read_is_logged_once_with_the_reason_and_the_file(
    tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert statistics_in_tail(tail, "day=1/part-0.parquet") is None
    [record] = caplog.records
    assert record.getMessage().startswith("day=1/part-0.parquet: its Parquet footer was not read")
    assert not record.getMessage().endswith(": ")


def test_a_fault_of_the_program_is_not_taken_for_a_damaged_footer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_: object) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr(parquet_footer, "footer_statistics", fault)
    with pytest.raises(TypeError, match="a fault"):
        statistics_in_tail(WHOLE, "a.parquet")


def test_a_bound_that_python_cannot_hold_costs_the_bounds_of_its_column_alone() -> None:
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("us"))
    found = statistics_in_tail(parquet(far=far, near=pa.array([7])), "a.parquet")
    assert found is not None
    rows, columns = found
    assert rows == 1
    assert (columns["far"].nulls, columns["far"].minimum, columns["far"].maximum) == (0, None, None)
    assert (columns["near"].minimum, columns["near"].maximum) == ("7", "7")


def test_without_pyarrow_there_are_no_statistics_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert statistics_in_tail(WHOLE, "a.parquet") is None
    assert not caplog.records
