"""A streaming batch dies at every storage call, and its query is restarted with the same checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.spark.writer import task_write
from tests.conftest import Summarise
from tests.support.commit.destination import crash_at
from tests.support.soak import sample
from tests.support.spark.streaming_query import Stream, TasksHere

pytestmark = [pytest.mark.soak, pytest.mark.fault]

EARLIER, ROWS = [1, 2], [3, 4, 5]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> TasksHere:
    here = TasksHere()
    monkeypatch.setattr(task_write, "TaskContext", here)
    monkeypatch.setattr(
        os, "fsync", lambda _: None
    )  # only processes die here, so fsync is disabled: this halves the time
    return here


@pytest.fixture
def streams(tmp_path: Path, tasks: TasksHere) -> Iterator[Iterator[Stream]]:
    """Yield fresh copies of a destination with one published batch of the query, without end."""
    first = Stream(str(tmp_path / "first"), tasks)
    first.publish(EARLIER)

    def copies() -> Iterator[Stream]:
        for number in count():
            copy = Stream(str(tmp_path / f"copy-{number}"), tasks)
            shutil.copytree(first.destination, copy.destination)
            yield copy
            shutil.rmtree(copy.destination)

    yield copies()
    FAILPOINTS.arm({})


# This is a sample: other tests crash the job commit at every call. Odd strides cover both sides of a call.
@pytest.mark.parametrize(("overwrite", "stride"), [(False, 9), (True, 21)], ids=["append", "complete"])
def test_a_batch_that_dies_at_any_storage_call_is_visible_once_after_its_replay(
    streams: Iterator[Stream], *, overwrite: bool, stride: int, summarise: Summarise
) -> None:
    expected = ROWS if overwrite else [*EARLIER, *ROWS]
    for number, stream in enumerate(streams):
        where = crash_at(
            number * stride,
            lambda stream=stream: stream.publish(ROWS, batch=1, overwrite=overwrite),  # type: ignore[misc]
        )
        assert stream.ids() in (EARLIER, expected), where

        stream.publish(ROWS, batch=1, overwrite=overwrite)

        assert stream.ids() == stream.listed_ids() == expected, where
        assert stream.open_uploads() == [], where
        if where is None:
            break
    summarise(f"streaming batch: {number} crash points")
    assert number * stride > 100


@pytest.mark.parametrize("action", ["lost", "refuse"])
def test_a_batch_with_a_lost_or_refused_call_is_visible_once_after_its_replay(
    streams: Iterator[Stream], action: str
) -> None:
    names: list[str] = []
    FAILPOINTS.observer = names.append
    next(streams).publish(ROWS, batch=1)
    FAILPOINTS.observer = None
    for name in sample([*dict.fromkeys(names)], every=3, offset=action == "lost"):
        stream = next(streams)
        FAILPOINTS.arm({name: action})
        with suppress(LockgateError):  # Spark ends the query with this error
            stream.publish(ROWS, batch=1)
        FAILPOINTS.arm({})

        stream.publish(ROWS, batch=1)

        assert stream.ids() == stream.listed_ids() == [*EARLIER, *ROWS], name
        assert stream.open_uploads() == [], name
