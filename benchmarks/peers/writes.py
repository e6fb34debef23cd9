"""Measure writes of a data frame by Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from benchmarks.peers import results
from benchmarks.peers.results import Result, Turn, Way
from benchmarks.peers.run import Run
from benchmarks.peers.spark_writers import WRITERS
from benchmarks.peers.write_session import Session
from lockgate.storage_core.decoding import decode_json


def measure(run: Run, rows: int, files: int, master: str, ways: Sequence[str] | None) -> Result:
    """Write rows by each way in turns."""
    # A delay concerns only what goes to S3.
    wanted = [key for key in ways or WRITERS if not run.latency_ms or WRITERS[key].place == "s3"]
    local = {key: WRITERS[key].place == "local" for key in wanted}
    skipped = {key: reason for key in wanted if (reason := run.reason_to_skip(key, local=local[key]))}
    kept = [key for key in wanted if key not in skipped]
    session = Session(
        rows=rows,
        files=files,
        rounds=run.rounds,
        master=master,
        ways=kept,
        folder=str(run.folder),
        jars=str(run.jars) if run.jar_files() else None,
    )
    if run.server is not None:
        session.bucket = f"s3://{run.server.bucket}"
        session.server, session.server_pid = run.server.endpoint, run.server.pid
    turns = _turns(run, session, proxied=run.latency_ms > 0)
    at_s3 = [key for key in kept if WRITERS[key].place == "s3"]
    counted = turns
    if at_s3 and not run.latency_ms:
        run.say("requests, counted by a proxy:")
        counted = _turns(run, msgspec.structs.replace(session, ways=at_s3, rounds=1), proxied=True)
    return Result(
        work="write",
        command=results.command(sys.argv[1:]),
        date=results.today(),
        machine=results.machine(),
        versions=results.versions(run.jar_files(), java=True),
        rows=rows,
        files=files,
        latency_ms=run.latency_ms,
        ways=[
            Way(key=key, turns=turns[key], requests=counted[key][-1].requests if key in at_s3 else {})
            for key in kept
        ],
        skipped=skipped,
    )


def _turns(run: Run, session: Session, *, proxied: bool) -> dict[str, list[Turn]]:
    if proxied:
        session = msgspec.structs.replace(session, proxy=run.proxy)
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.write_session", msgspec.json.encode(session).decode()],
        env=run.environment(proxied=proxied),
        stdout=subprocess.PIPE,
        check=True,
    )
    return decode_json(answer.stdout.splitlines()[-1], dict[str, list[Turn]])
