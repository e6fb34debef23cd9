"""Look at a job's libraries from Spark's executors, and at the log of the child process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lines:
    """Record the lines of a task's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, *arguments: object) -> None:
        """Record a line."""
        self.lines.append(message % arguments)


def applied(spark: SparkSession, module: str, expression: str) -> list[str]:
    """Import a module on the executors and return the value of an expression there."""

    def run(rows: Iterator[int]) -> Iterator[str]:
        import importlib

        library = importlib.import_module(module)
        return (str(eval(expression, {"library": library, "row": row})) for row in rows)

    return spark.sparkContext.parallelize(range(4), 2).mapPartitions(run).collect()
