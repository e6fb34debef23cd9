"""Compare puts and gets of blobs with boto3's transfer manager, and a sweep with a listing of its store.

    python -m scripts.with_servers --s3 python -m benchmarks.blobs [--part files small sweep] [--rounds 3]
        [--mib 64 1024]

Needs an S3 server and writes below a prefix of its bucket. Every measurement runs in a new process; the ways
alternate in each round, because the machine may be busy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.blobs_load import Done, Load, run
from benchmarks.blobs_sweep import show_sweeps
from benchmarks.job_commit import test_server
from lockgate.storage_core.settings import MIB

PARTS: Final = ("files", "small", "sweep")
PUTS: Final = {
    "boto3": "upload_file",
    "tuned": "upload_file, tuned",
    "server": "Lockgate, in process",
    "client": "Lockgate, HTTP",
}
GETS: Final = {
    "boto3": "download_file",
    "tuned": "download_file, tuned",
    "server": "Lockgate, HA to server",
    "cache": "Lockgate, HA to cache",
    "client": "Lockgate, HTTP",
    "cached": "Lockgate, from its cache",
}
PLAIN: Final = ("boto3", "tuned")
HEADINGS: Final = ("what", "wall s", "ratio", "CPU s", "server CPU s", "peak MiB", "server peak MiB")


class Spent(NamedTuple):
    """Cost of one measurement, and the CPU time of its blob server."""

    done: Done
    server_cpu_s: float


class BlobServerProcess:
    """A blob server that was started for measurements.

    Args:
        folder: Folder of its local store.
    """

    def __init__(self, folder: Path) -> None:
        program = "from lockgate.storage_core.cli.root_command import main; main()"
        command = [sys.executable, "-c", program, "blob-server", "--port", "0"]
        environment = {
            name: value for name, value in os.environ.items() if name != "LOCKGATE_BLOB_SERVER_URL"
        }
        environment["LOCKGATE_BLOB_DIR"] = str(folder)
        self._child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.url = (self._child.stdout.readline() if self._child.stdout else "").strip()

    def cpu_s(self) -> float:
        """Return its CPU time so far."""
        spent = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """Return its maximum resident size so far."""
        lines = Path(f"/proc/{self._child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

    def stop(self) -> None:
        """End it."""
        self._child.terminate()
        self._child.communicate()


@contextlib.contextmanager
def blob_server(root: Path) -> Iterator[BlobServerProcess]:
    """Run a blob server that loads use as clients."""
    server = BlobServerProcess(root / "served")
    os.environ["LOCKGATE_BLOB_SERVER_URL"] = server.url
    try:
        yield server
    finally:
        del os.environ["LOCKGATE_BLOB_SERVER_URL"]
        server.stop()


def measured(server: BlobServerProcess, load: Load) -> Spent:
    """Run a load and measure it."""
    before_s = server.cpu_s()
    done = run(load)
    return Spent(done, server.cpu_s() - before_s)


def show_files(root: Path, sizes_mib: Sequence[int], rounds: int, console: Console) -> None:
    """Measure one file of each size."""
    for mib in sizes_mib:
        file = root / "file"
        with file.open("wb") as into:
            for _ in range(mib):
                into.write(os.urandom(MIB))
        with blob_server(root) as server:
            puts = {by: Load(work="put", by=by, file=str(file)) for by in PUTS}
            console.print(table_of(f"put {mib} MiB", PUTS, server, measure(server, puts, rounds)))
        with blob_server(root) as server:
            keys = run(Load(work="put", by="client", file=str(file), keep=True)).keys
            gets = {by: Load(work="get", by=by, keys=keys) for by in GETS}
            console.print(table_of(f"get {mib} MiB", GETS, server, measure(server, gets, rounds)))
        file.unlink()


def show_small(root: Path, count: int, rounds: int, console: Console) -> None:
    """Measure many small blobs."""
    puts = {by: Load(work="put-many", by=by, count=count, threads=_threads(by)) for by in PUTS}
    with blob_server(root) as server:
        console.print(table_of(f"put {count:,} of 10 KiB", PUTS, server, measure(server, puts, rounds)))
    with blob_server(root) as server:
        keys = run(Load(work="put-many", by="client", count=count, keep=True)).keys
        gets = {by: Load(work="get-many", by=by, keys=keys, threads=_threads(by)) for by in GETS}
        console.print(table_of(f"get {count:,} of 10 KiB", GETS, server, measure(server, gets, rounds)))


def _threads(by: str) -> int:
    return 32 if by == "tuned" else 16


def measure(server: BlobServerProcess, loads: dict[str, Load], rounds: int) -> dict[str, list[Spent]]:
    """Measure the ways alternately, once in each round."""
    taken: dict[str, list[Spent]] = {by: [] for by in loads}
    for _ in range(rounds):
        for by, load in loads.items():
            if by == "server":
                _empty()
            taken[by].append(measured(server, load))
    return taken


def table_of(
    title: str, names: dict[str, str], server: BlobServerProcess, taken: dict[str, list[Spent]]
) -> Table:
    """Return a table of medians; ratios are to the faster way of boto3."""
    walls = {by: median(run.done.wall_s for run in spent) for by, spent in taken.items()}
    plain_s = min(walls[by] for by in PLAIN)
    table = Table(title=f"{title} (median of {len(taken['boto3'])})")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for by, spent in taken.items():
        is_served = by == "client"
        table.add_row(
            names[by],
            f"{walls[by]:.2f}",
            f"{walls[by] / plain_s:.2f}",
            f"{median(run.done.cpu_s for run in spent):.2f}",
            f"{median(run.server_cpu_s for run in spent):.2f}" if is_served else "",
            f"{max(run.done.peak_bytes for run in spent) / MIB:.0f}",
            f"{server.peak_bytes() / MIB:.0f}" if is_served else "",
        )
    return table


def _empty() -> None:
    """Delete the local store of an in-process server, so that it gets blobs from the HA store."""
    shutil.rmtree(Path(os.environ["LOCKGATE_HOME"]) / "blobs", ignore_errors=True)


def describe() -> str:
    """Return the machine's cores and load, and the date."""
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return f"{os.cpu_count()} cores; load before: {load}; {time.strftime('%Y-%m-%d')}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 256, 1024], help="sizes of the files")
    parser.add_argument("--small", type=int, default=10_000, help="number of blobs of 10 KiB")
    parser.add_argument("--swept", type=int, default=1_000_000, help="blobs in the local store of a sweep")
    parser.add_argument("--swept-ha", type=int, default=10_000, help="blobs in the HA store of a sweep")
    parser.add_argument("--folder", type=Path, help="parent of the working folder; default: temporary files")
    options = parser.parse_args()
    url = test_server()
    if url is None:
        parser.error("there is no S3 server: run this by scripts.with_servers --s3")
    console = Console(width=125)
    console.print(describe())
    parts = options.part or PARTS
    with tempfile.TemporaryDirectory(prefix="lockgate-bench-", dir=options.folder) as folder:
        root = Path(folder)
        os.environ["LOCKGATE_HOME"] = str(root / "home")
        os.environ["LOCKGATE_BLOB_STORE_URL"] = f"{url}/bench-{uuid.uuid4().hex[:8]}"
        (root / "home").mkdir()
        if "files" in parts:
            show_files(root, options.mib, options.rounds, console)
        if "small" in parts:
            show_small(root, options.small, options.rounds, console)
        if "sweep" in parts:
            show_sweeps(options.swept, options.swept_ha, options.rounds, console)


if __name__ == "__main__":
    main()
