"""Partition folders: names are the same as those of Spark and are read back unchanged."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark.schema.hive_layout import (
    escape,
    folder_text,
    partition_folder,
)
from lockgate.storage_core.stores.protocol import check_key
from lockgate.storage_core.tables.partitions import partition_values, unescape

PRINTABLE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("a b", "a b"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("x=y", "x%3Dy"),
        ("tab\there", "tab%09here"),
        ("\"#'*:?\\{[]^", "%22%23%27%2A%3A%3F%5C%7B%5B%5D%5E"),
        ("São Paulo", "São Paulo"),
        ("}~&+,;@$", "}~&+,;@$"),
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        (True, "true"),
        (7, "7"),
        (dt.date(2026, 11, 21), "2026-11-21"),
        (dt.datetime.fromisoformat("2026-11-21T01:02:03.400"), "2026-11-21 01%3A02%3A03.4"),
        (dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")), "2026-01-01 00%3A00%3A00"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_a_value_becomes_the_same_folder_name_as_in_spark(value: object, folder: str) -> None:
    assert partition_folder(["v"], [value]) == f"v={folder}"


def test_columns_are_nested_in_their_order_and_their_names_are_escaped_too() -> None:
    assert partition_folder(["a/b", "c"], [1, "x"]) == "a%2Fb=1/c=x"


@given(PRINTABLE)
def test_escaping_is_reversible(text: str) -> None:
    assert unescape(escape(text)) == text


@given(PRINTABLE, PRINTABLE)
def test_every_accepted_value_makes_a_safe_key_and_is_read_back(column: str, value: str) -> None:
    try:
        key = f"{partition_folder([column], [value])}/part-0.parquet"
        check_key(key)
    except InvalidInputError:
        return
    assert partition_values(key) == {column: value}


def test_a_value_in_another_unicode_form_is_refused_with_its_column() -> None:
    with pytest.raises(InvalidInputError, match=r"'city'.*NFC"):
        partition_folder(["city"], ["Sa\u0303o"])


def test_a_null_folder_is_read_back_as_null_and_plain_folders_are_not_columns() -> None:
    found = partition_values("raw/day=__HIVE_DEFAULT_PARTITION__/c=a%2Fb/part-1.parquet")
    assert found == {"day": None, "c": "a/b"}


def test_a_file_name_with_an_equals_sign_is_not_a_column() -> None:
    assert partition_values("day=1") == {}


def test_a_small_decimal_has_an_exponent_without_ansi_as_in_spark() -> None:
    values = [Decimal("1E-18"), Decimal("0E-7"), Decimal("0.000001"), Decimal("-1.50")]
    assert [folder_text(value, ansi=False) for value in values] == [
        "1E-18",
        "0E-7",
        "0.000001",
        "-1.50",
    ]
    assert folder_text(values[0], ansi=True) == "0.000000000000000001"
