"""Accidents of the first attempt of a Spark task, while it has open uploads.

An accident is a step of the task, upstream of its writer. It happens in partition 0 only, and waits for
conditions, not for a time. Both attempts write notes to a folder, which the test reads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import psutil

from lockgate.storage_core.stores import open_store

if TYPE_CHECKING:
    import pyarrow as pa

Accident = Literal["slow", "killed"]
"""`slow`: the first try does not end by itself. `killed`: it kills its executor with -9."""
Step = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]

FIRST_TRY: Final = "first-try.json"
"""The processes of the first try, and its open uploads."""
SECOND_TRY: Final = "second-try.json"
"""Which processes of the first try still lived when the next one sent its rows."""
PATIENCE_S: Final = 120.0


def accident(how: Accident, destination: str, notes: str, uploads: int) -> Step:
    """Return the step in which it happens.

    Args:
        how: Kind of accident.
        destination: Destination of the write.
        notes: Folder for the notes.
        uploads: Minimum number of its uploads that are open when it happens.
    """

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tried = _tries_of_the_first_task()
        if tried:  # not only 1: Spark may give the first retry to the dying executor, and count it
            pids = _first_try(notes)["pids"]
            if how == "killed":
                await_that(lambda: not any(map(psutil.pid_exists, pids)), "the killed executor's end")
            Path(notes, SECOND_TRY).write_text(json.dumps([pid for pid in pids if psutil.pid_exists(pid)]))
        yield from batches
        if tried == 0:
            executor, pids = _processes()
            _note(notes, {"pids": pids, "uploads": _await_uploads(destination, uploads)})
            if how == "killed":
                executor.kill()
            await_that(lambda: False, "an end from outside")

    return passed_on


def await_that(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: It does not.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.02)


def _tries_of_the_first_task() -> int | None:
    """Return the number of earlier attempts of partition 0; None in other partitions."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber() if context.partitionId() == 0 else None


def _processes() -> tuple[psutil.Process, list[int]]:
    """Return this task's executor, and its pid with its two workers'.

    One runs this step and one writes; an executor of one core has no others, for they are used again.
    """
    daemon, executor = psutil.Process().parents()[:2]
    assert executor.name() == "java"
    workers = [process.pid for process in daemon.children()]
    return executor, [executor.pid, *workers]


def _await_uploads(destination: str, count: int) -> list[str]:
    """Wait until this many uploads of partition 0 are open; return their ids."""
    store = open_store(destination)
    found: list[str] = []

    def all_open() -> bool:
        infos = (info for page in store.upload_pages() for info in page)
        found[:] = [info.upload_id for info in infos if "part-00000-" in info.key]
        return len(found) >= count

    await_that(all_open, "the first try's uploads")
    return found


def _note(notes: str, content: dict[str, list[int] | list[str]]) -> None:
    aside = Path(notes, f"{FIRST_TRY}.new")
    aside.write_text(json.dumps(content))
    aside.rename(Path(notes, FIRST_TRY))


def _first_try(notes: str) -> dict[str, list[int]]:
    path = Path(notes, FIRST_TRY)
    await_that(path.exists, "the first try's accident")
    return json.loads(path.read_text())
