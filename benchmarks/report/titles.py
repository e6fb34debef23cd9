"""The names of ways and works, as the page and its charts show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.peers.results import Result

WAYS: Final[Mapping[str, str]] = {
    "spark-v1": "Spark, FileOutputCommitter v1",
    "spark-v2": "Spark, FileOutputCommitter v2",
    "lockgate-direct-local": "Lockgate, direct, local",
    "dropped": "rows carried to Python and dropped",
    "s3a-magic": "S3A, magic committer",
    "s3a-directory": "S3A, directory committer",
    "s3a-magic-tuned": "S3A magic, tuned",
    "lockgate-spark-s3": "Lockgate, spark, S3",
    "lockgate-spark-local": "Lockgate, spark, local",
    "lockgate-staged-s3": "Lockgate, staged, S3",
    "lockgate-direct-s3": "Lockgate, direct, S3",
    "lockgate": "Lockgate's job commit",
    "bare-crt": "completions alone, bare AWS CRT",
    "boto3": "completions alone, boto3, 32 threads",
}


def title(result: Result) -> str:
    """Return the heading of a result."""
    delayed = f", {result.latency_ms:g} ms added to each request" if result.latency_ms else ""
    files = "1 file" if result.files == 1 else f"{result.files:,} files"
    if result.work == "commit":
        return f"Job commit of {files}{delayed}"
    return f"Spark writes {result.rows:,} rows to {files}{delayed}"
