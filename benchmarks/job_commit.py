"""Measure a job commit of n pending files: seconds, requests and peak memory of the committing process.

    python -m benchmarks.job_commit [--files 1000 --files 10000] [--destination s3://bucket/prefix]

Tasks are committed in one process and the job in another, so that memory is that of the job commit alone.
With an S3 server, comparisons complete every upload without a protocol: bare CRT, and 32 threads of boto3.
Each process first does the same with a job of one file, so that no figure contains imports.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from xml.sax.saxutils import escape

import boto3
import msgspec
from botocore.config import Config
from rich.console import Console
from rich.table import Table

from lockgate import attach_job, open_job
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.stores.instrumented import InstrumentedStore

if TYPE_CHECKING:
    from lockgate.storage_core.stores.protocol import PendingUpload

TASK_FILES: Final = 500
TITLES: Final = {
    "commit": "Lockgate's job commit",
    "by_crt": "completions alone, bare CRT",
    "by_boto3": "completions alone, boto3, 32 threads",
}


class Measured(msgspec.Struct):
    """Cost of one commit: wall and CPU seconds, requests, peak resident bytes.

    `benchmarks.peers` names a proxy and the process of the S3 server in the environment: then the cost has
    the requests that the proxy saw, by kind, and the server's CPU seconds.
    """

    wall_s: float
    cpu_s: float
    requests: int
    peak_bytes: int
    by_kind: dict[str, int] = {}
    server_cpu_s: float = 0.0


def prepare(destination: str, files: int) -> str:
    """Write a job of small files, commit its tasks, and return its id."""
    job = open_job(destination, f"bench-{uuid.uuid4().hex}")
    for first in range(0, files, TASK_FILES):
        with job.attempt(f"task-{first:07d}") as attempt:
            for number in range(first, min(first + TASK_FILES, files)):
                with attempt.open(path_of(number)) as file:
                    file.write(b"x" * 64)
    job.suspend()
    return job.job_id


def path_of(number: int) -> str:
    """Return the path of a file of the job."""
    return f"part={number % 16}/f-{number:07d}.bin"


def commit(destination: str, job_id: str) -> Measured:
    """Commit a prepared job in this process."""
    job = attach_job(destination, job_id)
    done = _measured(job.commit, 0)
    store = job.store
    if isinstance(store, InstrumentedStore):
        done.requests = sum(store.requests.values())
    return done


def by_crt(destination: str, job_id: str) -> Measured:
    """Complete a prepared job's uploads with AWS CRT and nothing else: all at once, as CRT schedules them."""
    from awscrt.auth import AwsCredentialsProvider  # noqa: PLC0415 - not measured for `commit`
    from awscrt.http import HttpHeaders, HttpRequest  # noqa: PLC0415
    from awscrt.io import ClientBootstrap  # noqa: PLC0415
    from awscrt.s3 import (  # noqa: PLC0415
        S3Client,
        S3RequestTlsMode,
        S3RequestType,
        create_default_s3_signing_config,
    )

    frozen = boto3.Session().get_credentials().get_frozen_credentials()
    credentials = AwsCredentialsProvider.new_static(frozen.access_key, frozen.secret_key, frozen.token)
    client = S3Client(
        bootstrap=ClientBootstrap.get_or_create_static_default(),
        region="us-east-1",
        signing_config=create_default_s3_signing_config(region="us-east-1", credential_provider=credentials),
        tls_mode=S3RequestTlsMode.DISABLED,
    )
    host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")

    def request(upload: PendingUpload) -> HttpRequest:
        parts = "".join(
            "".join(
                [
                    "<Part>",
                    *(f"<{name}>{escape(str(value))}</{name}>" for name, value in part.items()),
                    "</Part>",
                ]
            )
            for part in _completed(upload)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        path = f"/{quote(_key_in_bucket(destination, upload))}?uploadId={quote(upload.upload_id, safe='')}"
        headers = HttpHeaders([("Host", host), ("Content-Length", str(len(body)))])
        return HttpRequest("POST", path, headers, BytesIO(body))

    uploads = _uploads(destination, job_id)

    def work() -> None:
        sent = [
            client.make_request(
                type=S3RequestType.DEFAULT,
                operation_name="CompleteMultipartUpload",
                request=request(upload),
            )
            for upload in uploads
        ]
        for one in sent:
            one.finished_future.result()

    return _measured(work, len(uploads))


def by_boto3(destination: str, job_id: str) -> Measured:
    """Complete a prepared job's uploads with boto3 and 32 threads, and nothing else."""
    from lockgate.storage_core.concurrency import in_parallel  # noqa: PLC0415 - not measured for `commit`

    client = boto3.client(
        "s3", region_name="us-east-1", config=Config(max_pool_connections=32, s3={"addressing_style": "path"})
    )
    uploads = _uploads(destination, job_id)

    def complete(upload: PendingUpload) -> None:
        bucket, _, key = f"{_key_in_bucket(destination, upload)}".partition("/")
        client.complete_multipart_upload(
            Bucket=bucket,
            Key=key,
            UploadId=upload.upload_id,
            MultipartUpload={"Parts": _completed(upload)},  # type: ignore[typeddict-item]
        )

    def work() -> None:
        for _ in in_parallel(complete, uploads, 32):
            pass

    return _measured(work, len(uploads))


def _uploads(destination: str, job_id: str) -> list[PendingUpload]:
    job = attach_job(destination, job_id)
    return [file.upload for pending in job.pending_sets() for file in pending.files]


def _completed(upload: PendingUpload) -> list[dict[str, str | int]]:
    return [
        {"PartNumber": part.number, "ETag": part.etag}
        | ({"ChecksumCRC32": part.checksum} if part.checksum else {})
        for part in upload.parts
    ]


def _key_in_bucket(destination: str, upload: PendingUpload) -> str:
    return f"{destination.removeprefix('s3://')}/{upload.key}"


def _measured(work: Callable[[], None], requests: int) -> Measured:
    by_kind, server_s = _beside()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    by_kind_after, server_after_s = _beside()
    return Measured(
        wall_s, cpu_s, requests, peak_bytes(), dict(by_kind_after - by_kind), server_after_s - server_s
    )


def _beside() -> tuple[Counter[str], float]:
    """Return the requests that a proxy has seen, and the CPU seconds of the server, if they are known."""
    pid = os.environ.get("BENCH_SERVER_PID")
    if pid is None:
        return Counter(), 0.0
    from benchmarks.peers.proxy import requests_at  # noqa: PLC0415 - only `benchmarks.peers` needs them
    from benchmarks.peers.server import cpu_s  # noqa: PLC0415

    return requests_at(os.environ.get("BENCH_PROXY")), cpu_s(int(pid))


STEPS: Final[dict[str, Callable[[str, str], Measured]]] = {
    "commit": commit,
    "by_crt": by_crt,
    "by_boto3": by_boto3,
}


def peak_bytes() -> int:
    """Return the maximum resident size of this process so far.

    On Linux `ru_maxrss` includes the parent's size at the fork, so a large parent would hide the child's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_child(step: str, *arguments: str) -> str:
    """Run a step of this module in a new process and return its output."""
    command = [sys.executable, "-m", "benchmarks.job_commit", "--step", step, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def measure(destination: str, files: int, step: str) -> Measured:
    """Prepare a job and run one step with it, each in a new process."""
    here = f"{destination}/{uuid.uuid4().hex[:8]}"
    small = [f"{here}/small", in_child("prepare", f"{here}/small", "1")]
    large = [f"{here}/large", in_child("prepare", f"{here}/large", str(files))]
    return decode_json(in_child(step, *small, *large), Measured)


def test_server() -> str | None:
    """Return the URL of the tests' S3 server and set its credentials for boto3; None: there is no server."""
    url = os.environ.get("LOCKGATE_TEST_S3_URL")
    if url is not None:
        os.environ["AWS_ENDPOINT_URL"] = os.environ["LOCKGATE_TEST_S3_ENDPOINT"]
        os.environ["AWS_ACCESS_KEY_ID"] = os.environ["LOCKGATE_TEST_S3_KEY"]
        os.environ["AWS_SECRET_ACCESS_KEY"] = os.environ["LOCKGATE_TEST_S3_SECRET"]
    return url


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--destination", default=test_server())
    parser.add_argument("--step", choices=["prepare", *STEPS])
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.step == "prepare":
        print(prepare(options.arguments[0], int(options.arguments[1])))
    elif options.step:
        small, large = options.arguments[:2], options.arguments[2:]
        STEPS[options.step](*small)
        measured = STEPS[options.step](*large)
        print(msgspec.json.encode(measured).decode())
    else:
        with tempfile.TemporaryDirectory() as local:
            show(options.destination or local, options.files or [1000, 10_000], options.rounds)


def show(destination: str, counts: list[int], rounds: int) -> None:
    """Measure both ways alternately and print medians."""
    table = Table(title=f"Job commit at {destination} (median of {rounds})")
    for heading in ("files", "what", "wall s", "CPU s of the process", "requests", "peak MiB"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for files in counts:
        steps = [step for step in STEPS if step == "commit" or destination.startswith("s3://")]
        seen: dict[str, list[Measured]] = {step: [] for step in steps}
        for _ in range(rounds):
            for step, results in seen.items():
                results.append(measure(destination, files, step))
        for step, results in seen.items():
            middle = sorted(results, key=lambda one: one.wall_s)[len(results) // 2]
            table.add_row(
                f"{files:,}",
                TITLES[step],
                f"{middle.wall_s:.2f}",
                f"{middle.cpu_s:.2f}",
                f"{middle.requests:,}",
                f"{middle.peak_bytes / 2**20:.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
