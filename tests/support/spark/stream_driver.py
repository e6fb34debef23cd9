"""A driver with several streaming queries, each of which dies at a point of its own.

One start of Spark serves all points: a query that stands still at its point is there when `kill -9` comes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark.errors import StreamingQueryException

from lockgate.storage_core.spark.session import spark_session
from tests.support.spark.accidents import await_that
from tests.support.spark.driver import QUICK
from tests.support.spark.stream_deaths import MortalDataSource, death_of
from tests.support.spark.stream_place import Place

READY: Final = "all stand still"


def main(homes: list[str]) -> None:
    """Bring one query after the other to its point, say so, and wait for an end from outside."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the JVM says things on standard output too
    spark = spark_session("mortal", master=f"local[{len(homes)}]", config=QUICK)
    spark.dataSource.register(MortalDataSource)
    for place in map(Place, map(Path, homes)):
        death = death_of(place.destination)
        query = place.start(spark)
        await_that(Path(death.note).exists, death.point)
        if death.alone:
            with suppress(StreamingQueryException):
                query.awaitTermination()
    print(READY, file=answers, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
