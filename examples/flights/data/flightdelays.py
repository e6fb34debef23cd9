"""A user's library: a word for each flight's delay. The job's executors get it as a wheel in a blob."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATE_MINUTES: Final = 15


def word_for(dep_delay: int | None) -> str:
    """Return a word for a departure's delay in minutes; None: the flight never left."""
    if dep_delay is None:
        return "cancelled"
    if dep_delay < 0:
        return "early"
    return "late" if dep_delay > LATE_MINUTES else "on time"


def with_word(flights: DataFrame) -> DataFrame:
    """Return the flights with a column `delay`; the executors' Python finds the words."""
    from pyspark.sql.functions import udf  # noqa: PLC0415 - on the driver only

    return flights.withColumn("delay", udf(word_for, "string")("dep_delay"))
