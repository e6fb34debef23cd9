"""Job commits by Hadoop's S3A committer in one JVM, without Spark's job around them.

    python -m benchmarks.peers.s3a_commits JARS COMMITTER

A process that is started by `benchmarks.peers`. For each line of its input, a JSON object of `Job`, it writes
pending files by the committer's tasks, commits the job in the JVM, and prints its `Turn`.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.job_commit import TASK_FILES
from benchmarks.peers.proxy import requests_at
from benchmarks.peers.results import Turn
from benchmarks.peers.turns import measured
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.spark.s3a import s3a_config, s3a_jars
from lockgate.storage_core.spark.session import spark_session

_THREADS: Final = 16


class Job(msgspec.Struct, kw_only=True):
    """A job to commit.

    Attributes:
        destination: `s3://bucket/prefix`, new.
        files: Files of 64 bytes.
        server: URL of the S3 server, for files; the commit goes to `AWS_ENDPOINT_URL`.
        server_pid: Process of the S3 server.
        proxy: URL of the proxy that counts requests, or None.
    """

    destination: str
    files: int
    server: str
    server_pid: int
    proxy: str | None = None


class Hadoop:
    """The classes of Hadoop, in the JVM of a Spark session."""

    def __init__(self, jars: Path, folder: Path, committer: str) -> None:
        settings = load_settings(spark_s3_jars=jars)
        config = s3a_jars(settings)
        self._spark = spark_session("lockgate-bench", master="local[1]", config=config)
        self._spark.sparkContext.setLogLevel("OFF")
        self._jvm: Any = self._spark._jvm  # noqa: SLF001 - no public name
        self._config = {
            **s3a_config(settings),
            "fs.s3a.committer.name": committer,
            "fs.s3a.buffer.dir": f"{folder}/buffer",
            "fs.s3a.committer.staging.tmp.path": f"file://{folder}/staging",
        }

    def prepared(self, job: Job) -> Callable[[], object]:
        """Write and commit the tasks of a job; return the function that commits the job."""
        hadoop = self._jvm.org.apache.hadoop
        conf = self._conf({"spark.sql.sources.writeJobUUID": str(uuid.uuid4())})
        straight = self._conf({"fs.s3a.endpoint": job.server})
        path = hadoop.fs.Path(job.destination.replace("s3://", "s3a://"))
        # Files are put without the proxy's delay, by a file system that is not the committer's.
        files = hadoop.fs.FileSystem.newInstance(path.toUri(), straight)
        job_id = hadoop.mapreduce.JobID("lockgate", 1)

        def committer(task: int) -> tuple[Any, Any]:
            task_id = hadoop.mapreduce.TaskID(job_id, hadoop.mapreduce.TaskType.MAP, task)
            attempt = hadoop.mapreduce.TaskAttemptID(task_id, 0)
            context = hadoop.mapreduce.task.TaskAttemptContextImpl(conf, attempt)
            factory = hadoop.fs.s3a.commit.S3ACommitterFactory()
            return factory.createOutputCommitter(path, context), context

        def put(number: int, work: Any) -> None:
            stream = files.create(hadoop.fs.Path(work, f"part={number % 16}/f-{number:07d}.bin"))
            stream.write(b"x" * 64)
            stream.close()

        whole = hadoop.mapreduce.task.JobContextImpl(conf, job_id)
        main, _ = committer(0)
        main.setupJob(whole)
        with ThreadPoolExecutor(_THREADS) as pool:
            for task, first in enumerate(range(0, job.files, TASK_FILES)):
                tasks, context = committer(task)
                tasks.setupTask(context)
                numbers = range(first, min(first + TASK_FILES, job.files))
                for _ in pool.map(partial(put, work=tasks.getWorkPath()), numbers):
                    pass
                tasks.commitTask(context)
        files.close()
        return lambda: main.commitJob(whole)

    def stop(self) -> None:
        """End the JVM."""
        self._spark.stop()

    def _conf(self, more: dict[str, str]) -> Any:
        conf = self._jvm.org.apache.hadoop.conf.Configuration()
        for name, value in {**self._config, **more}.items():
            conf.set(name, value)
        return conf


def turn(hadoop: Hadoop, job: Job) -> Turn:
    """Prepare a job, and return what its commit took."""
    commit = hadoop.prepared(job)
    before = requests_at(job.proxy)
    done = measured(commit, job.server_pid)
    return msgspec.structs.replace(done, requests=dict(requests_at(job.proxy) - before))


def main() -> None:
    """Commit the jobs of the input."""
    with tempfile.TemporaryDirectory(prefix="lockgate-bench-") as folder:
        hadoop = Hadoop(Path(sys.argv[1]), Path(folder), sys.argv[2])
        try:
            for line in sys.stdin:
                print(
                    msgspec.json.encode(turn(hadoop, decode_json(line, Job))).decode(),
                    flush=True,
                )
        finally:
            hadoop.stop()


if __name__ == "__main__":
    main()
