"""Compare a sweep of many blobs, one in a hundred of them garbage, with listing them all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.blobs_load import Done
from benchmarks.job_commit import peak_bytes
from lockgate.storage_core.blobs.keys import BlobKey, new_blob_key
from lockgate.storage_core.blobs.open_blobs import ha_blobs
from lockgate.storage_core.blobs.registry.upload_sets import PutBlob
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.journal import Mutation, open_journal
from lockgate.storage_core.settings import MIB, load_settings

GARBAGE: Final = 100
"""One of this many blobs has no reference."""

FOLDER: Final = 10_000
"""Blobs of one job."""

BATCH: Final = 512

THREADS: Final = 32

WORKS: Final = {
    "list": "listing",
    "sweep": "sweep",
    "seek": "sweep that lists the store for orphans, too",
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step, which runs in a new process.

    Attributes:
        work: `add` blobs, `list` all, `sweep` by the rows alone, or `seek`: sweep and list for orphans.
        in_ha: The blobs are in the HA store instead of the local one.
        count: Number of blobs to add.
        is_garbage: The blobs have no reference.
    """

    work: str
    in_ha: bool
    count: int = 0
    is_garbage: bool = False


def run(step: Step) -> Done:
    """Run a step in a new process."""
    command = [sys.executable, "-m", "benchmarks.blobs_sweep", msgspec.json.encode(step).decode()]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return decode_json(run.stdout, Done)


def show_sweeps(in_local: int, in_ha: int, rounds: int, console: Console) -> None:
    """Measure sweeps of both stores; each sweep deletes one blob in a hundred."""
    for is_ha, count in ((False, in_local), (True, in_ha)):
        if not count:
            continue
        run(Step(work="add", in_ha=is_ha, count=count))
        taken: dict[str, list[Done]] = {work: [] for work in WORKS}
        for _ in range(rounds):
            for work, done in taken.items():
                if work != "list":
                    run(Step(work="add", in_ha=is_ha, count=count // GARBAGE, is_garbage=True))
                done.append(run(Step(work=work, in_ha=is_ha)))
        console.print(_table(taken, f"{count:,} blobs in the {'HA' if is_ha else 'local'} store", rounds))


def _table(taken: dict[str, list[Done]], title: str, rounds: int) -> Table:
    table = Table(title=f"{title}, 1 % garbage (median of {rounds})")
    for heading in ("what", "wall s", "ratio", "CPU s", "peak MiB"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    walls = {work: median(run.wall_s for run in runs) for work, runs in taken.items()}
    for work, runs in taken.items():
        table.add_row(
            WORKS[work],
            f"{walls[work]:.2f}",
            f"{walls[work] / walls['list']:.2f}",
            f"{median(run.cpu_s for run in runs):.2f}",
            f"{max(run.peak_bytes for run in runs) / MIB:.0f}",
        )
    return table


def add(server: BlobServer, count: int, *, is_garbage: bool) -> None:
    """Add tiny blobs, in batches."""
    owners = () if is_garbage else ("job",)
    for first in range(0, count, FOLDER):
        job_id = f"job-{first // FOLDER:05d}"
        upload_set = server.begin_set(job_id)
        numbers = range(first, min(first + FOLDER, count))
        keys = [new_blob_key(hashlib.sha256(b"%d" % number).hexdigest(), upload_set) for number in numbers]
        _place(server, job_id, keys)
        for start in range(0, len(keys), BATCH):
            server.stores.journal.write(
                [
                    Mutation(
                        op=PutBlob(
                            job_id=job_id,
                            blob_key=key,
                            upload_set=upload_set,
                            guarantee="recreatable" if server.stores.ha is None else "ha",
                            use="other",
                            name="",
                            size_bytes=1,
                            owners=owners,
                        )
                    )
                    for key in keys[start : start + BATCH]
                ]
            )
        server.complete_set(upload_set)


def _place(server: BlobServer, job_id: str, keys: Sequence[BlobKey]) -> None:
    ha = server.stores.ha
    if ha is not None:
        for _ in in_parallel(lambda key: ha.store.put(f"{job_id}/{key}", b"x"), keys, THREADS):
            pass
        return
    folder = server.stores.local.path / job_id
    folder.mkdir(parents=True, exist_ok=True)
    for key in keys:
        (folder / key).write_bytes(b"x")


def list_all(server: BlobServer) -> int:
    """List a store by its own calls and return the number of its blobs."""
    if server.stores.ha is not None:
        return sum(len(page) for page in server.stores.ha.store.pages())
    found = 0
    with os.scandir(server.stores.local.path) as folders:
        for folder in folders:
            if folder.is_dir():
                with os.scandir(folder) as files:
                    found += sum(file.stat().st_size for file in files)
    return found


def main() -> None:
    """Run the step of the command line and print its result."""
    step = decode_json(sys.argv[1], Step)
    settings = load_settings()
    home = settings.home_dir / ("swept-ha" if step.in_ha else "swept")
    home.mkdir(exist_ok=True)
    with (
        open_journal(f"sqlite:///{home}/journal.db") as journal,
        BlobServer(
            LocalBlobs(home / "blobs"), ha_blobs(settings) if step.in_ha else None, journal, retention_s=0.0
        ) as server,
    ):
        if step.work == "add":
            add(server, step.count, is_garbage=step.is_garbage)
        work: Callable[[], object] = {
            "add": lambda: None,
            "list": lambda: list_all(server),
            "sweep": lambda: server.sweep(dry_run=False, orphans=False),
            "seek": lambda: server.sweep(dry_run=False, orphans=True),
        }[step.work]
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        work()
        done = Done(time.perf_counter() - began_s, time.process_time() - began_cpu_s, peak_bytes())
    print(msgspec.json.encode(done).decode())


if __name__ == "__main__":
    main()
