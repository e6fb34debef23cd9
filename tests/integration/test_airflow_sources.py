"""Tests of the main job's sources: a wrong source or expression is a user error and is not retried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockgate.operators.spark_process.frames import read_files
from lockgate.storage_core.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """Return a CSV file with three rows."""
    file = tmp_path / "orders.csv"
    file.write_text("id,country\n1,be\n2,nl\n3,be\n")
    return str(file)


def test_columns_and_rows_are_chosen_by_expressions(spark: SparkSession, orders: str) -> None:
    frame = read_files(
        spark,
        source=orders,
        source_format="csv",
        source_options={"header": "true"},
        columns=["cast(id as int) as id"],
        where="country = 'be'",
    )

    assert [row.asDict() for row in frame.collect()] == [{"id": 1}, {"id": 3}]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"source": "/nowhere/orders.csv"}, "Path does not exist: file:/nowhere/orders.csv"),
        ({"where": "town = 'Gent'"}, "`town` cannot be resolved"),
        ({"columns": ["cast(id as"]}, "Syntax error"),
    ],
)
def test_an_unreadable_source_is_a_one_line_error_with_a_remedy(
    spark: SparkSession, orders: str, wrong: dict[str, object], reason: str
) -> None:
    arguments = {"source": orders, "source_format": "csv", "source_options": {"header": "true"}, **wrong}

    with pytest.raises(InvalidInputError) as refused:
        read_files(spark, **arguments)  # type: ignore[arg-type]

    message = str(refused.value)
    assert reason in message
    assert message.endswith("nothing was staged; correct the parameters and start a new run")
    assert "\n" not in message
