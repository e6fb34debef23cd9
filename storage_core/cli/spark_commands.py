"""`lockgate spark-jars fetch`: Spark's jars for S3 before a task needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockgate.storage_core.cli.render import print_line

commands = typer.Typer(help="Spark's jars for s3:// and s3a:// sources.", no_args_is_help=True)


@commands.callback()
def group() -> None:
    """Keep `fetch` a subcommand: Typer merges a group's only command into the group."""


@commands.command("fetch")
def fetch(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="Folder to fetch into, to be copied to machines without a Maven repository; by default the "
            "one in which every Spark session of this user looks.",
        ),
    ] = None,
) -> None:
    """Fetch hadoop-aws of Spark's Hadoop version with what it needs: 690 MB, and only what is not there."""
    from lockgate.storage_core.spark.s3a_fetch import fetch_s3a_jars, ivy_folder

    jars = fetch_s3a_jars(folder or ivy_folder(), print_line)
    print_line(f"the jars are in {jars}")
    if folder is not None:
        print_line(f"set LOCKGATE_SPARK_S3_JARS={jars.absolute()} where tasks run")
