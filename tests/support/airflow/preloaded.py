"""Run code in forks of a process that has imported Airflow only, as the DAG processor forks for each file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any, Final

MARK: Final = "answer: "

SERVER: Final = f"""
import datetime, gc, json, os, sys
import airflow.sdk
from airflow.sdk import DAG, Asset, AssetAlias, BaseOperator, Param
import airflow.sdk.definitions.mappedoperator, airflow.sdk.exceptions
Asset("s3://bucket/key")  # Airflow asks every provider for handlers of URIs: Amazon's imports boto3
for schedule in ("@daily", datetime.timedelta(minutes=5), [Asset("a")]):
    DAG("airflows-own", schedule=schedule)

def answer(found):
    print({MARK!r} + json.dumps(found), flush=True)

gc.freeze()  # a fork's garbage collection then copies no memory
airflows = set(sys.modules)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        exec(json.loads(line))
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        answer(None)
"""


@cache
def _server() -> subprocess.Popen[str]:
    """Return the process; it ends with this one, whose end of the pipe closes."""
    return subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},  # installed modules have byte code
    )


def answer_of(code: str) -> Any:
    """Return what the code passes to `answer`; `airflows` are the modules that were imported before it."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(code) + "\n")
    server.stdin.flush()
    line = next(line for line in server.stdout if line.startswith(MARK))
    found = json.loads(line.removeprefix(MARK))
    assert found is not None, f"it raised an error, see above: {code}"
    return found
