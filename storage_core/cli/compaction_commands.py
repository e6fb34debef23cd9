"""`lockgate compact`, and `lockgate destinations report`, which shows where compaction is worth while."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import typer

from lockgate.storage_core.cli.render import (
    Destination,
    JsonFlag,
    byte_count,
    byte_size,
    counted,
    print_json,
    print_line,
    print_table,
)
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.concurrency import Progress

commands = typer.Typer(help="Reports about destinations.", no_args_is_help=True)

SHOWN: Final = 1_000
"""Folders of one report."""
LINES: Final = 10
"""Progress lines of one step."""
Target = Annotated[str, typer.Option(metavar="SIZE", help="Files below this size are small, such as 256MiB.")]


@commands.callback()
def group() -> None:
    """Keep `report` a subcommand: Typer merges a group's only command into the group."""


@commands.command("report")
def report(
    destination: Destination,
    *,
    target: Target = "256MiB",
    limit: Annotated[int, typer.Option(min=1, help="Report at most so many folders.")] = SHOWN,
    after: Annotated[str, typer.Option(metavar="FOLDER", help="Begin after this folder.")] = "",
    json: JsonFlag = False,
) -> None:
    """Count the files of each folder that a listing shows, by size, and the jobs that wrote them."""
    from lockgate.storage_core.commit.destination.size_report import BOUNDS, SizeReport
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused
    from lockgate.storage_core.stores import open_store

    refuse_unused(destination)
    sizes = SizeReport(open_store(destination, load_settings()), byte_count(target))
    folders = list(islice(sizes.folders(after), limit))
    names = [*(f"below {byte_size(bound)}" for bound in BOUNDS), "larger"]
    histogram = dict(zip(names, sizes.histogram, strict=True))
    writers, following = sizes.writers(), folders[-1].folder if len(folders) == limit else ""
    if json:
        head = {"total": sizes.total, "histogram": histogram, "writers": writers, "after": following}
        print_json({**head, "folders": folders})
        return
    print_table(
        ("folder", "files", "small", "size", "average", "jobs"),
        [
            (
                row.folder or "/",
                row.files,
                row.small,
                byte_size(row.size),
                byte_size(row.size // row.files),
                row.jobs,
            )
            for row in folders
        ],
        empty=f"no {'more ' if after else ''}files at {destination}",
    )
    if folders:
        total, shown = sizes.total, (f"{number} {name}" for name, number in histogram.items() if number)
        small = f"{total.small} of them below {target}"
        print_line(f"{counted(total.files, 'file')}, {byte_size(total.size)}; {small}; {', '.join(shown)}")
        most = ", ".join(f"{job} ({files})" for job, files in writers) or "other programs"
        others = total.jobs - len(writers)
        print_line(f"written by {most}{f' and {others} more jobs' if others else ''}")
    if following:
        print_line(f"There may be more: `lockgate destinations report {destination} --after '{following}'`.")


def compact(
    destination: Destination,
    *,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V/...", help="Only this partition and those below it; may be repeated."),
    ] = None,
    target: Target = "256MiB",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be merged.")] = False,
    via: Annotated[
        Literal["arrow", "spark"], typer.Option(help="Merge in this process, or in tasks of a Spark session.")
    ] = "arrow",
    master: Annotated[str, typer.Option(help="Spark's master, for --via spark.")] = "local[2]",
    name: Annotated[
        str | None, typer.Option(help="Name of the job: a run that was killed goes on under its name.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Merge the small Parquet files of each partition, as a job that replaces exactly the files that it read.

    Readers of the log see the small files or the new ones. Files that other jobs publish meanwhile stay. If
    another job replaces a file that was read, the compaction is aborted (exit code 8): run it again.
    """
    from lockgate.storage_core.commit.setup.capabilities import refuse_unused
    from lockgate.storage_core.compaction import compact as compaction

    refuse_unused(destination)
    spark = None
    if via == "spark" and not dry_run:
        from lockgate.storage_core.spark.session import spark_session

        spark = spark_session("lockgate compact", master=master)
    done = compaction.compact(
        destination,
        partitions=partition or (),
        target_bytes=byte_count(target),
        dry_run=dry_run,
        spark=spark,
        name=name,
        progress=_progress_lines(),
    )
    if json:
        print_json(msgspec.structs.replace(done, destination=destination))
        return
    print_table(
        ("partition", "small files", "size", "become"),
        [(one.partition or "/", one.files, byte_size(one.size), one.into) for one in done.merged],
        empty=f"nothing to merge: {counted(done.files_before, 'file')}, {byte_size(done.size_before)}",
    )
    for left in done.left:
        print_line(f"left: {left.key}: {left.reason}")
    if done.merged:
        counts = f"{counted(done.files_before, 'live file')} before, {done.files_after} after"
        job = f"job {done.receipt.job_id}, turn {done.receipt.turn}: " if done.receipt else ""
        print_line(f"{job}{counts}{'' if done.receipt else '; a dry run: nothing was changed'}")


def _progress_lines() -> Progress:
    """Return a callback that prints lines on standard error: some ten for each step."""

    def report(step: str, done: int, total: int) -> None:
        if done == total or not done % max(1, total // LINES):
            sys.stderr.write(f"{step}: {done} of {total}\n")

    return report
