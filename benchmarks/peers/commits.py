"""Measure commits of jobs of many small pending files."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import msgspec

from benchmarks.job_commit import Measured
from benchmarks.peers import results
from benchmarks.peers.results import Result, Turn, Way
from benchmarks.peers.run import Run
from benchmarks.peers.s3a_commits import Job
from benchmarks.peers.turns import in_turns
from lockgate.storage_core.decoding import decode_json

STEPS: Final = {"lockgate": "commit", "bare-crt": "by_crt", "boto3": "by_boto3"}
"""Steps of `benchmarks.job_commit`, by way."""
WARM_UP_FILES: Final = 500
WAYS: Final = (*STEPS, "s3a-magic")


def measure(run: Run, files: int, ways: Sequence[str] | None) -> Result:
    """Commit jobs of `files` files by each way in turns; count requests in a turn of its own."""
    wanted = ways or WAYS
    skipped = {key: reason for key in wanted if (reason := run.reason_to_skip(key))}
    kept = [key for key in wanted if key not in skipped]
    delayed = run.latency_ms > 0
    taken = turns(run, kept, files, run.rounds, proxied=delayed)
    counted = taken
    if not delayed:
        run.say("requests, counted by a proxy:")
        counted = turns(run, kept, files, 1, proxied=True, warm=False)
    return Result(
        work="commit",
        command=results.command(sys.argv[1:]),
        date=results.today(),
        machine=results.machine(),
        versions=results.versions(run.jar_files(), java="s3a-magic" in kept),
        rows=0,
        files=files,
        latency_ms=run.latency_ms,
        ways=[Way(key=key, turns=taken[key], requests=counted[key][-1].requests) for key in kept],
        skipped=skipped,
    )


def turns(
    run: Run, ways: Sequence[str], files: int, rounds: int, *, proxied: bool, warm: bool = True
) -> dict[str, list[Turn]]:
    """Commit jobs by each way in turns, through the proxy or not; `warm` warms up S3A's JVM."""
    with ExitStack() as stack:
        by_way: dict[str, Callable[[], Turn]] = {}
        for key in ways:
            if key in STEPS:
                by_way[key] = partial(_turn, run, STEPS[key], files, proxied=proxied)
            else:
                by_way[key] = stack.enter_context(_hadoop(run, files, proxied=proxied, warm=warm))
        return in_turns(by_way, rounds, run.say, warm_up=False)


def _turn(run: Run, step: str, files: int, *, proxied: bool) -> Turn:
    """Prepare a job, straight at the server, and commit it, each in a process of its own."""
    server = run.known_server()
    here = f"s3://{server.bucket}/{uuid.uuid4().hex[:8]}"

    def child(name: str, *arguments: str, through_proxy: bool = False) -> str:
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.job_commit", "--step", name, *arguments],
            env=run.environment(proxied=through_proxy),
            stdout=subprocess.PIPE,
            check=True,
        )
        return answer.stdout.decode().strip()

    small = [f"{here}/small", child("prepare", f"{here}/small", "1")]
    large = [f"{here}/large", child("prepare", f"{here}/large", str(files))]
    os.sync()
    load = os.getloadavg()[0]
    done = decode_json(child(step, *small, *large, through_proxy=proxied), Measured)
    return Turn(
        wall_s=done.wall_s,
        client_cpu_s=done.cpu_s,
        server_cpu_s=done.server_cpu_s,
        load=load,
        requests=done.by_kind,
    )


@contextmanager
def _hadoop(run: Run, files: int, *, proxied: bool, warm: bool) -> Iterator[Callable[[], Turn]]:
    """Start a JVM that commits jobs by S3A's magic committer; the first ones warm it up."""
    server = run.known_server()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.s3a_commits", str(run.jars), "magic"],
        env=run.environment(proxied=proxied),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def turn(count: int) -> Turn:
        job = Job(
            destination=f"s3://{server.bucket}/{uuid.uuid4().hex}",
            files=count,
            server=server.endpoint,
            server_pid=server.pid,
            proxy=run.proxy if proxied else None,
        )
        stdin.write(f"{msgspec.json.encode(job).decode()}\n")
        stdin.flush()
        return decode_json(stdout.readline(), Turn)

    with process:
        for count in (1, WARM_UP_FILES) if warm else (1,):
            turn(count)
        yield partial(turn, files)
        stdin.close()
