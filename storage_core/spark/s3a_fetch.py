"""Fetch hadoop-aws once for a machine and user, and report it: Spark itself says nothing for minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.settings import Settings
from lockgate.storage_core.spark.s3a import hadoop_version, s3a_jars
from lockgate.storage_core.spark.session import spark_session

SIZE_MB: Final = 690
EVERY_S: Final = 10.0
Say = Callable[[str], object]


def ivy_folder() -> Path:
    """Return the folder in which Spark keeps what it fetches."""
    return Path.home() / ".ivy2.5.2"


def is_fetched(folder: Path) -> bool:
    """Return whether the folder has hadoop-aws of Spark's Hadoop version."""
    return (folder / "jars" / f"org.apache.hadoop_hadoop-aws-{hadoop_version()}.jar").exists()


@contextmanager
def announced(say: Say, folder: Path, *, every_s: float = EVERY_S) -> Iterator[None]:
    """Say what a session that starts in the block fetches, and how far it is; nothing if it has it already.

    Args:
        say: Gets each line.
        folder: Folder into which Spark fetches.
        every_s: Time between two lines.
    """
    if is_fetched(folder):
        yield
        return
    say(
        f"fetching hadoop-aws {hadoop_version()} with what it needs, about {SIZE_MB} MB, into {folder}, once "
        "for this machine and user; `lockgate spark-jars fetch` does it before a task needs it"
    )
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(every_s):
            with suppress(OSError):  # a file was renamed when it was complete
                size = sum(file.stat().st_size for file in folder.glob("cache/**/*.*"))
                say(f"fetched {size // 1_000_000} of about {SIZE_MB} MB")

    thread = threading.Thread(target=report, daemon=True, name="lockgate-fetch")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def fetch_s3a_jars(folder: Path, say: Say) -> Path:
    """Fetch hadoop-aws with its dependencies by a local Spark session, and return the folder of the jars.

    Args:
        folder: Folder to fetch into; `ivy_folder()` is where sessions look.
        say: Gets lines about the progress.

    Raises:
        MissingPartError: Java is missing.
    """
    config = {**s3a_jars(Settings(spark_s3_jars=None)), "spark.jars.ivy": str(folder.absolute())}
    with announced(say, folder):
        spark_session("fetch hadoop-aws", master="local[1]", config=config).stop()
    return folder / "jars"
