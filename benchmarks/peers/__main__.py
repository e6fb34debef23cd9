"""Measure Lockgate beside its peers, and save the results for `benchmarks.report`.

    python -m benchmarks.peers write [--rows 5000000] [--files 12] [--rounds 5] [--latency-ms 80]
    python -m benchmarks.peers commit [--files 1000 --files 10000] [--rounds 5] [--latency-ms 80]

All ways take turns, A B A B, at one S3 server, which is started for the run. `write`: one warm Spark session;
a first round is not kept. `commit`: S3A in one warm JVM, every other turn in a process of its own, which
commits a job of one file before. With `--latency-ms` every request passes a proxy that delays it. What is not
on this machine, such as S3A's jars, is skipped with a reason.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.peers import commits, results, writes
from benchmarks.peers.proxy import delaying_proxy
from benchmarks.peers.results import Result
from benchmarks.peers.run import Run
from benchmarks.peers.server import GoMissingError, running_server


def show(result: Result, console: Console) -> None:
    """Print medians with least and greatest values."""
    table = Table(title=result.name())
    for heading in ("way", "wall s", "least", "greatest", "client CPU s", "server CPU s", "requests"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for way in result.ways:
        walls = [turn.wall_s for turn in way.turns]
        figures = (way.wall_s(), min(walls), max(walls), way.client_cpu_s(), way.server_cpu_s())
        table.add_row(way.key, *(f"{figure:.2f}" for figure in figures), f"{sum(way.requests.values()):,}")
    console.print(table)
    for key, reason in result.skipped.items():
        console.print(f"{key}: skipped: {reason}")


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=["write", "commit"])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument(
        "--files", type=int, action="append", help="by default 12; for commit 1,000 and 10,000"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]", help="Spark's master")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="added to each request")
    parser.add_argument("--ways", nargs="+", help="measure these only, and save nothing")
    parser.add_argument("--jars", type=Path, default=Path(".tools/ivy/jars"), help="of `make s3a-jars`")
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    options = parser.parse_args()
    console = Console(stderr=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockgate-bench-")))
        run = Run(options.rounds, options.latency_ms, folder, options.jars.absolute(), console.print)
        try:
            run.server = stack.enter_context(running_server(folder / "s3-data"))
        except GoMissingError as error:
            console.print(f"ways at an S3 server are skipped: {error}")
        else:
            run.proxy = stack.enter_context(delaying_proxy(run.server.endpoint, options.latency_ms))
        for files in options.files or ([12] if options.work == "write" else [1000, 10_000]):
            if options.work == "write":
                result = writes.measure(run, options.rows, files, options.master, options.ways)
            else:
                result = commits.measure(run, files, options.ways)
            show(result, console)
            if not options.ways:
                console.print(f"saved: {results.save(result, options.results)}")


if __name__ == "__main__":
    main()
