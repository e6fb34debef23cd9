"""One warm Spark session that writes by each way in turns: a process, started by `benchmarks.peers`.

    python -m benchmarks.peers.write_session '{"rows": …, …}'

It prints its turns as JSON, by way.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from benchmarks.peers.proxy import requests_at
from benchmarks.peers.results import Turn
from benchmarks.peers.server import Bucket
from benchmarks.peers.spark_writers import FLOOR, WRITERS
from benchmarks.peers.turns import in_turns, measured
from benchmarks.spark_write import TEN_COLUMNS
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.spark.s3a import configure_s3a, merged_config, s3a_jars
from lockgate.storage_core.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Session(msgspec.Struct, kw_only=True):
    """What a session shall do.

    Attributes:
        rows: Rows of the data frame.
        files: Files, and Spark tasks.
        rounds: Rounds that are kept, after one that warms up.
        master: Spark's master.
        ways: Keys of the ways.
        folder: Folder for local files.
        bucket: URL of the bucket; None: there is no S3 server.
        server: URL of the S3 server; the ways use `AWS_ENDPOINT_URL`.
        server_pid: Process of the S3 server.
        proxy: URL of the proxy that counts requests, or None.
        jars: Folder with the jars of hadoop-aws; None: there is none.
    """

    rows: int
    files: int
    rounds: int
    master: str
    ways: list[str]
    folder: str
    jars: str | None
    bucket: str | None = None
    server: str | None = None
    server_pid: int | None = None
    proxy: str | None = None


class Writing:
    """Writes of one data frame."""

    def __init__(self, df: DataFrame, session: Session) -> None:
        self._df = df
        self._session = session
        self._bucket = Bucket(session.server, session.bucket) if session.server and session.bucket else None

    def turn(self, key: str) -> Turn:
        """Write once to a new folder, check what is there, and delete it."""
        writer, name = WRITERS[key], uuid.uuid4().hex
        self._df.sparkSession._jvm.System.gc()  # type: ignore[union-attr] # noqa: SLF001 - no public name
        if writer.place == "local":
            local = Path(self._session.folder, name)
            turn = measured(partial(writer.write, self._df, str(local)), None)
            self._check(key, [path.name for path in local.glob("*.parquet")])
            shutil.rmtree(local, ignore_errors=True)
            return turn
        assert self._bucket is not None
        destination = f"{self._bucket.url}/{name}"
        before = requests_at(self._session.proxy)
        turn = measured(partial(writer.write, self._df, destination), self._session.server_pid)
        requests = requests_at(self._session.proxy) - before
        self._check(key, list(self._bucket.sizes(destination)))
        if (
            writer.committer
            and f'"{writer.committer}"' not in self._bucket.read(destination, "_SUCCESS").decode()
        ):
            raise AssertionError(f"{key}: Spark used another committer")
        self._bucket.remove(destination)
        return msgspec.structs.replace(turn, requests=dict(requests))

    def _check(self, key: str, names: list[str]) -> None:
        written = [name for name in names if name.endswith(".parquet") and not name.startswith(("_", "."))]
        if key != FLOOR and len(written) != self._session.files:
            raise AssertionError(f"{key}: {len(written)} files, not {self._session.files}")


def run(session: Session) -> dict[str, list[Turn]]:
    """Write in turns."""
    settings = load_settings()
    config = {
        # Spark's defaults are for a cluster; here driver and executors are one JVM.
        "spark.driver.memory": "4g",
        "spark.hadoop.fs.s3a.buffer.dir": f"{session.folder}/s3a",
        "spark.hadoop.fs.s3a.committer.staging.tmp.path": f"file://{session.folder}/s3a-staging",
    }
    if session.jars is not None:
        config = merged_config(config, s3a_jars(load_settings(spark_s3_jars=Path(session.jars))))
    spark = spark_session("lockgate-bench", master=session.master, config=config)
    spark.sparkContext.setLogLevel("OFF")
    if session.jars is not None:
        configure_s3a(spark, settings)
    df = spark.range(0, session.rows, 1, session.files).selectExpr(*TEN_COLUMNS)
    writing = Writing(df, session)
    ways: dict[str, Callable[[], Turn]] = {key: partial(writing.turn, key) for key in session.ways}
    try:
        return in_turns(ways, session.rounds, Console(stderr=True).print)
    finally:
        spark.stop()


def main() -> None:
    """Run a session, and print its turns."""
    turns = run(decode_json(sys.argv[1], Session))
    print(msgspec.json.encode(turns).decode())


if __name__ == "__main__":
    main()
