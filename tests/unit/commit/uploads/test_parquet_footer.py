"""A Parquet footer that cannot be read costs the statistics, not the file, and the log says why."""

from __future__ import annotations

import base64
import datetime as dt
import logging
import random
import sys
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from lockgate.storage_core.commit.records.job_record import Count
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.commit.uploads import parquet_footer
from lockgate.storage_core.commit.uploads.parquet_footer import (
    rows_of_file,
    statistics_in_tail,
    statistics_of_file,
)
from lockgate.storage_core.decoding import decode_json


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


def test_statistics_need_no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert statistics_in_tail(WHOLE, "a.parquet") is not None


MOMENTS: Final = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, dt.UTC),
    dt.datetime(2026, 11, 28, 7, tzinfo=dt.UTC),
    None,
]
EVERY_TYPE: Final = {
    "bool": pa.array([True, False, None]),
    "int8": pa.array([-5, 7, None], pa.int8()),
    "uint32": pa.array([1, 2**32 - 1, None], pa.uint32()),
    "uint64": pa.array([1, 2**64 - 1, None], pa.uint64()),
    "int64": pa.array([-(2**63), 2**63 - 1, None]),
    "float": pa.array([-1.5, 0.1, None], pa.float32()),
    "double": pa.array([-1e300, 2.5, None]),
    "text": pa.array(["a", "\u00fc", None]),
    "bytes": pa.array([b"\xff", b"a", None]),
    "fixed": pa.array([b"ab", b"cd", None], pa.binary(2)),
    "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "time": pa.array([dt.time(1, 2, 3), dt.time(23, 59, 59, 999_999), None], pa.time64("us")),
    "time_ms": pa.array([dt.time(1, 2, 3), dt.time(4), None], pa.time32("ms")),
    "moment": pa.array(MOMENTS, pa.timestamp("us")),
    "moment_ms": pa.array(MOMENTS, pa.timestamp("ms")),
    "moment_ns": pa.array(MOMENTS, pa.timestamp("ns")),
    "moment_utc": pa.array(MOMENTS, pa.timestamp("us", "UTC")),
    "decimal": pa.array([Decimal("-1.05"), Decimal("12345.60"), None], pa.decimal128(9, 2)),
    "long": pa.array([Decimal(-(10**30)), Decimal("1e30"), None], pa.decimal128(38, 5)),
    "nan": pa.array([float("nan"), None, None]),
    "null": pa.array([None, None, None], pa.int32()),
}


@pytest.mark.parametrize("decimals", [False, True], ids=["bytes", "integers"])
def test_types_and_bounds_are_those_that_arrow_reads(decimals: bool) -> None:
    written = BytesIO()
    table = pa.table(EVERY_TYPE)
    pq.write_table(table, written, row_group_size=2, store_decimal_as_integer=decimals)
    found = statistics_in_tail(written.getvalue(), "a.parquet")
    assert found is not None
    rows, columns = found
    assert (rows, list(columns)) == (3, table.schema.names)
    footer = pq.read_metadata(written)
    for index, name in enumerate(table.schema.names):
        known = footer.row_group(0).column(index).statistics
        bounds = (known.min, known.max) if known.has_min_max else (None, None)
        texts = [None if bound is None or name in {"bytes", "fixed"} else _text(bound) for bound in bounds]
        assert columns[name] == ColumnStatistics(
            type=str(table.schema.field(name).type),
            nulls=table[name].null_count,
            minimum=texts[0],
            maximum=texts[1],
        )


def test_a_half_has_bounds_too() -> None:
    found = statistics_in_tail(parquet(half=pa.array([-1.5, 0.25], pa.float16())), "a.parquet")
    assert found is not None
    assert found[1]["half"] == ColumnStatistics(type="halffloat", nulls=0, minimum="-1.5", maximum="0.25")


def _text(bound: object) -> str:
    return (
        str(bound).lower()
        if isinstance(bound, bool)
        else f"{bound:f}"
        if isinstance(bound, Decimal)
        else str(bound)
    )


def test_nested_columns_are_recorded_without_bounds_and_do_not_move_those_behind_them() -> None:
    nested = {
        "list": pa.array([[1, 2]]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
        "struct": pa.array([{"a": 1, "b": {"c": [2]}}]),
        "behind": pa.array([7]),
    }
    found = statistics_in_tail(parquet(**nested), "a.parquet")
    assert found is not None
    assert {name: column.type for name, column in found[1].items()} == {
        "list": "array<int64>",
        "map": "map<string,int32>",
        "struct": "struct<`a`:int64,`b`:struct<`c`:array<int64>>>",
        "behind": "int64",
    }
    assert (found[1]["behind"].minimum, found[1]["struct"].nulls) == ("7", None)


class _Keys(encryption.KmsClient):
    """Wraps a key by doing nothing."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64decode(key)


def encrypted(*, plaintext_footer: bool) -> bytes:
    """Return a file with an encrypted column."""
    config = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=plaintext_footer
    )
    properties = encryption.CryptoFactory(_Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), config
    )
    written = BytesIO()
    table = pa.table({"id": [1, 2], "secret": ["a", "b"], "behind": [3, 4]})
    with pq.ParquetWriter(written, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return written.getvalue()


def test_an_encrypted_column_is_recorded_without_bounds(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(encrypted(plaintext_footer=True))
    found = statistics_in_tail((tmp_path / "a.parquet").read_bytes(), "a.parquet")
    assert found is not None
    rows, columns = found
    assert rows == rows_of_file(tmp_path / "a.parquet") == 2
    assert columns["secret"] == ColumnStatistics(type="string")
    assert [(columns[name].minimum, columns[name].maximum) for name in ("id", "behind")] == [
        ("1", "2"),
        ("3", "4"),
    ]


def test_the_rows_of_a_file_with_an_encrypted_footer_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(encrypted(plaintext_footer=False))
    assert rows_of_file(tmp_path / "a.parquet") is None
    assert statistics_of_file(tmp_path / "a.parquet", "a.parquet") is None


def test_random_damage_in_a_footer_is_an_error_of_the_file_and_never_ends_the_process(tmp_path: Path) -> None:
    whole = parquet(**EVERY_TYPE, list=pa.array([[1], None, [2, 3]]))
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damage = random.Random(13)
    outcomes = set()
    for _ in range(500):
        tail = bytearray(whole)
        for _ in range(damage.choice([1, 1, 2, 8])):
            tail[damage.randrange(start, len(whole) - 4)] = damage.randrange(256)
        found = statistics_in_tail(bytes(tail), "a.parquet")
        outcomes.add(found is None)
        if found is not None:
            record = {"rows": found[0], "statistics": found[1]}
            decode_json(msgspec.json.encode(record), Recorded)
    assert outcomes == {True, False}


class Recorded(msgspec.Struct):
    """What a pending set keeps of a footer, and decodes again."""

    rows: Count
    statistics: dict[str, ColumnStatistics]
