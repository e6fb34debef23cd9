"""The data source with a configured death per destination: a point at which the query's process stops.

There it waits until it is killed from outside, or it kills itself. Workers import this module by its name.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.spark.data_source import LockgateDataSource
from lockgate.storage_core.spark.writer.stream import BATCH_ID

if TYPE_CHECKING:
    import pyarrow as pa

DEATHS: Final = "LOCKGATE_TEST_DEATHS"
BATCH: Final = 1
"""Queries die in their second batch: the first one is published."""
ENTERED: Final = "entered"
"""An additional point: Spark has called, nothing was done yet."""
RETURNED: Final = "returned"
"""An additional point: the commit has ended, Spark has not recorded it yet."""


@dataclass(frozen=True)
class Death:
    """The point at which a query dies.

    Attributes:
        note: File that is created at this point.
        point: A failpoint's name, `entered` or `returned`.
        alone: Whether only the committing process dies, and the driver survives.
    """

    note: str
    point: str
    alone: bool = False

    def passes(self, point: str) -> None:
        """Pass a point; at the configured one this process stops."""
        if point != self.point:
            return
        Path(self.note).touch()
        if self.alone:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()


def death_of(destination: str) -> Death:
    """Return the death that the environment configures for a destination."""
    return Death(**json.loads(os.environ[DEATHS])[destination])


class MortalWriter(DataSourceStreamArrowWriter):
    """Writes like the real writer until its death."""

    def __init__(self, real: DataSourceStreamArrowWriter, death: Death) -> None:
        self._real = real
        self._death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        with self._watched(context.getLocalProperty(BATCH_ID) == str(BATCH)):
            return self._real.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        with self._watched(batchId == BATCH):
            self._real.commit(list(messages), batchId)
            FAILPOINTS.hit(RETURNED)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self._real.abort(list(messages), batchId)

    @contextmanager
    def _watched(self, here: bool) -> Iterator[None]:
        FAILPOINTS.observer = self._death.passes if here else None
        try:
            FAILPOINTS.hit(ENTERED)
            yield
        finally:
            FAILPOINTS.observer = None


class MortalDataSource(LockgateDataSource):
    """The real data source, with the death that `LOCKGATE_TEST_DEATHS` configures for the destination."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        real = super().streamWriter(schema, overwrite)
        assert isinstance(real, DataSourceStreamArrowWriter)
        return MortalWriter(real, death_of(self.options["path"]))
