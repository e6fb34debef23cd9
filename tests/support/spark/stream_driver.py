"""A driver with several streaming queries, each of which dies at its own point.

One start of Spark serves all points: a query that is paused at its point waits there for `kill -9`.
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

READY: Final = "all queries are paused"


def main(homes: list[str]) -> None:
    """Run each query up to its point, print `READY`, and wait until the process is killed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the JVM writes to standard output, too
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
