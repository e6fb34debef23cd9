"""Measure pages of the files of one job: milliseconds and memory, of the first to the last page.

    python -m benchmarks.pages_files [--files 100 --files 100000]

The records of the job are made directly, in a directory: no file is written. `pending` has 100 files a task,
and `one task` has all files in one pending set. A page is a request to the application in this process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fastapi.testclient import TestClient
from rich.console import Console
from rich.table import Table

from lockgate import open_job
from lockgate.plugins.web.access import Host
from lockgate.plugins.web.answers import DEFAULT_LIMIT, MAX_LIMIT
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.commit.destination.log import write_live_shards
from lockgate.storage_core.commit.publish.commit_context import FileReport
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import digest, encode
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.log_records import LiveFile, Outcome, Receipt
from lockgate.storage_core.commit.records.pending_set import PendingFile, PendingSet
from lockgate.storage_core.commit.records.plan_records import AdditionShard, Decision, PlanHead
from lockgate.storage_core.commit.records.report import Ended, FileResult, Report
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES, shard_ref
from lockgate.storage_core.ids import AttemptId, JobAttemptId, TaskId, Token
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import PendingUpload
from lockgate.storage_core.stores.protocol import Part, in_pages

ROUNDS: Final = 20
Maker = Callable[[JobFolder, list[PendingFile]], None]
ATTEMPT: Final = JobAttemptId("driver-1")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, action="append")
    table = Table("files", "from", "first ms", "middle ms", "last ms", "p95 ms", "all files s", "grown MiB")
    for files in parser.parse_args().files or [100, 100_000]:
        for name, make in {
            "pending": pending,
            "one task": one_task,
            "plan": planned,
            "report": reported,
        }.items():
            with tempfile.TemporaryDirectory() as folder:
                table.add_row(f"{files:,}", name, *measure(Path(folder), files, make))
    Console().print(table)


def measure(root: Path, files: int, make: Maker) -> list[str]:
    """Return the figures of one job."""
    settings = load_settings(home=root / "home", journal_url="none")
    url, job_id = str(root / "lake"), "bench-g1"
    make_in_process(url, settings, files, make)
    host = Host(may_read=lambda: None, may_act={}, offers=lambda _: frozenset(), user=lambda _: "bench")
    with TestClient(web_app(host, Reads(settings, destinations=[url]))) as client:

        def page(after: str | None, limit: int = DEFAULT_LIMIT) -> tuple[float, str | None, int]:
            query = {"destination": url, "limit": str(limit), "after": after or ""}
            begun_s = time.perf_counter()
            answer = client.get(f"/api/v1/jobs/{job_id}/files", params=query)
            took_ms = 1000 * (time.perf_counter() - begun_s)
            found = answer.raise_for_status().json()
            return took_ms, found["next_after"], len(found["items"])

        page(None)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from now on
        before = resident_bytes()
        begun_s, after, cursors, seen = time.perf_counter(), None, list[str | None](), 0
        while True:
            cursors.append(after)
            _, after, number = page(after, MAX_LIMIT)
            seen += number
            if after is None:
                break
        if seen != files:
            raise AssertionError(f"{seen} of {files} files were listed")
        all_s, grown = time.perf_counter() - begun_s, resident_bytes() - before
        chosen = (cursors[0], cursors[len(cursors) // 2], cursors[-1])
        times = [[page(cursor)[0] for _ in range(ROUNDS)] for cursor in chosen]
    medians = [f"{statistics.median(each):.1f}" for each in times]
    p95 = statistics.quantiles([each for found in times for each in found], n=20)[-1]
    return [*medians, f"{p95:.1f}", f"{all_s:.1f}", f"{grown / 2**20:.1f}"]


def make_in_process(url: str, settings: Settings, files: int, make: Maker) -> None:
    """Set a job up, and make its records, in a process whose memory is not that of the pages.

    Raises:
        AssertionError: It failed.
    """
    maker = multiprocessing.get_context("spawn").Process(target=make_job, args=(url, settings, files, make))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise AssertionError(f"making {files} files ended with {maker.exitcode}")


def make_job(url: str, settings: Settings, files: int, make: Maker) -> None:
    """Set a job up, and make its records."""
    with open_job(url, "bench", settings=settings) as job:
        make(JobFolder(job.store, job.job_id), [pending_file(number) for number in range(files)])


def pending_file(number: int) -> PendingFile:
    """Return one file of ten rows, which no store has."""
    key = f"day={number % 365:03d}/part-{number:07d}-abcdefghij.parquet"
    upload = PendingUpload(
        key=key,
        upload_id=f"{number:032x}",
        token=Token(f"{number:032x}"),
        size=1_000_000,
        parts=(Part(number=1, size=1_000_000, etag=f"{number:032x}", checksum="AAAAAA=="),),
    )
    return PendingFile(path=key.replace("-abcdefghij", ""), upload=upload, rows=10)


def pending(folder: JobFolder, files: list[PendingFile], per_task: int = 100) -> None:
    """Write the pending sets of tasks with 100 files each."""
    for number, first in enumerate(range(0, len(files), per_task)):
        task, attempt = TaskId(f"task-{number:05d}"), AttemptId("a" * 32)
        record = PendingSet(
            job_id=folder.job_id,
            job_attempt=ATTEMPT,
            task_id=task,
            attempt_id=attempt,
            stamp=Stamp(0, 1),
            input_digest="",
            created_s=time.time(),
            files=tuple(files[first : first + per_task]),
        )
        folder.store.create(folder.pending_set_key(task, attempt), encode(record))


def one_task(folder: JobFolder, files: list[PendingFile]) -> None:
    """Write one pending set with all files."""
    pending(folder, files, len(files))


def planned(folder: JobFolder, files: list[PendingFile]) -> None:
    """Write the plan and the decision of a commit."""
    additions = []
    for batch in in_pages(files, SHARD_ENTRIES):
        data = encode(AdditionShard(files=batch))
        folder.store.create(folder.key(f"plan/shards/{digest(data)}.json"), data)
        additions.append(shard_ref(digest(data), (f.upload.size for f in batch), (f.rows for f in batch)))
    head = encode(
        PlanHead(
            job_id=folder.job_id,
            job_attempt=ATTEMPT,
            turn=1,
            mode="append",
            chosen_digest="0" * 64,
            audit=None,
            additions=tuple(additions),
            removals=(),
        )
    )
    folder.store.create(folder.key(f"plan/{digest(head)}/plan.json"), head)
    decision = Decision(
        job_id=folder.job_id,
        verdict="commit",
        token=Token("0" * 32),
        stamp=Stamp(),
        decided_s=time.time(),
        decided_by="bench",
        plan=digest(head),
        turn=1,
    )
    folder.store.create(folder.key("COMMIT_STARTED"), encode(decision))


def reported(folder: JobFolder, files: list[PendingFile]) -> None:
    """Write the outcome, the report and the marker of a committed job."""
    planned(folder, files)
    report = FileReport(folder)
    for file in files:
        report.add(FileResult(key=file.key, result="published"))
    receipt = Receipt(
        job_id=folder.job_id,
        turn=1,
        committer="magic",
        mode="append",
        plan="0" * 64,
        files=len(files),
        rows=10 * len(files),
        size=1_000_000 * len(files),
        removed_files=0,
        published_s=time.time(),
    )
    live = (
        LiveFile(key=f.key, size=f.upload.size, rows=f.rows, token=f.upload.token, job_id=folder.job_id)
        for f in files
    )
    outcome = Outcome(
        job_id=folder.job_id,
        turn=1,
        verdict="published",
        decided_s=time.time(),
        added=tuple(write_live_shards(folder.store, live)),
        receipt=receipt,
    )
    folder.store.create(layout.turn_outcome(1), encode(outcome))
    ended = Report(
        job_id=folder.job_id,
        ended="committed",
        reason="",
        receipt=receipt,
        counts=dict(report.counts),
        shards=tuple(report.shards),
        files=report.unstored(),
    )
    folder.store.put(folder.key("report.json"), encode(ended))
    marker = Ended(job_id=folder.job_id, ended="committed", ended_s=time.time(), receipt=receipt)
    folder.store.create(folder.key("COMMIT_SUCCESS"), encode(marker))


def resident_bytes() -> int:
    """Return the peak of this process's memory."""
    (line,) = (
        each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")
    )
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
