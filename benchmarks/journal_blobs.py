"""Measure how long a job of many blobs holds the journal's head: the longest transaction of each step.

    python -m benchmarks.journal_blobs [--blobs 100000] [--database sqlite postgresql]

All other writers wait while a transaction holds the head. Each step is measured once. The rows are those of
real blobs; no bytes are stored.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.journal_scale import write_all
from lockgate import attach_job
from lockgate.storage_core.blobs.registry.queries import PAGE, blobs_of
from lockgate.storage_core.blobs.registry.removals import ForgetBlob, MarkDeleting
from lockgate.storage_core.blobs.registry.upload_sets import upload_resource
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.commit.registry.entries import RecordTask
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.journal import Journal, Mutation, metrics, open_journal
from lockgate.storage_core.journal.entries.lease_entries import FreeLease
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores.protocol import in_pages
from tests.support.journal.many_blobs import UPLOAD, keys_of, put, set_up, sets_of, steps_to_abandon
from tests.support.postgres import postgres_bin, primary


class Steps:
    """Prints how long each step took, and its write transactions."""

    def __init__(self) -> None:
        self._taken_s = list[float]()
        metrics.record_write = self._note

    def measure(self, name: str, call: Callable[[], object]) -> None:
        """Run a step and print its transactions, from the first statement until the commit."""
        self._taken_s.clear()
        began_s = time.perf_counter()
        call()
        took_s, taken = time.perf_counter() - began_s, sorted(self._taken_s)
        print(
            f"{name:<46} longest {taken[-1] * 1000:8.1f} ms, median {median(taken) * 1000:7.1f} ms, "
            f"{len(taken):6,} transactions, {took_s:7.1f} s in all",
            flush=True,
        )

    def _note(self, journal: str, *, entries: int, mutations: int, seconds: float) -> None:  # noqa: ARG002
        self._taken_s.append(seconds)


def sweep_rows(journal: Journal, job_id: str) -> None:
    """Delete the rows of an ended job's blobs, as a sweep does."""
    while True:
        with journal.reading() as reading:
            page = blobs_of(reading, job_id)
        if not page:
            return
        keys = [{"job_id": blob.job_id, "blob_key": blob.blob_key} for blob in page]
        marks = [MarkDeleting(**key, staged_for_s=0.0) for key in keys]
        removals = [op for mark, key in zip(marks, keys, strict=True) for op in (mark, ForgetBlob(**key))]
        for some in in_pages(removals, PAGE):
            journal.write([Mutation(op=op) for op in some])


def run(url: str, root: Path, number: int) -> None:
    """Measure every step in the life of a job with so many blobs and task commits."""
    settings = load_settings(home=root / "home", journal_url=url)
    lake, keys, steps = root / "lake", keys_of(number), Steps()
    with open_journal(url) as journal:
        sets = sets_of(journal)
        opened, _ = sets.take("uploader", UPLOAD)
        put(journal, opened, keys)
        steps.measure("complete the upload set", lambda: sets.complete(opened))
        steps.measure("set up the job", lambda: set_up(root, settings, keys))
        steps.measure("set up by a second driver", lambda: set_up(root, settings, keys))
        with journal.reading() as reading:
            [job] = reading.where(Job, {})
        attempt = RecordTask(
            destination=job.destination, job_id=job.job_id, task_id="", attempt_id="a", job_attempt="",
            files=1, rows=1, size_bytes=1,
        )  # fmt: skip
        tasks = (msgspec.structs.replace(attempt, task_id=f"part-{key[-8:]}") for key in keys)
        write_all(journal, (Mutation(op=task) for task in tasks))
        handle = attach_job(str(lake), job.job_id, settings=settings)
        steps.measure("end the job", handle.abort)
        steps.measure("sweep its rows", lambda: sweep_rows(journal, UPLOAD))
        shutil.rmtree(lake)
        lake.mkdir()
        steps.measure(
            "forget the job and its task commits",
            lambda: list(rescan(job.destination, settings=settings)),
        )
        another, stamp = sets.take("another", "up-2")
        put(journal, another, keys, "up-2")
        journal.apply(FreeLease(resource=upload_resource(another), stamp=stamp))
        entries = steps_to_abandon(journal, another)
        steps.measure("abandon an upload set", lambda: [journal.apply(entry) for entry in entries])


def main() -> None:
    """Parse the arguments and measure each database."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blobs", type=int, default=100_000)
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"])
    chosen = parser.parse_args()
    for kind in chosen.database:
        with ExitStack() as stack:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = f"sqlite:///{root}/journal.db"
            if kind == "postgresql":
                if postgres_bin() is None:
                    continue
                url = stack.enter_context(primary(root / "server", fsync="on")).new_database("bench")
            print(f"{kind}, load {os.getloadavg()[0]:.1f}:", flush=True)
            run(url, root, chosen.blobs)
            print(f"load after {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
