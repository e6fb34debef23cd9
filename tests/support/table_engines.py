"""The Spark with Delta and Iceberg of `make table-engines`, asked from a test: one process, started once."""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(__file__).parents[2] / ".tools" / "table-engines"
PROGRAM: Final = Path(__file__).parent / "processes" / "table_engines.py"
_OWN: Final = ("SPARK_HOME", "SPARK_SUBMIT_OPTS", "PYTHONPATH")
"""Variables for the Spark of the other tests."""


class EngineError(Exception):
    """Spark failed: the text is that of its error."""


def are_made() -> bool:
    """Return whether the environment is there."""
    return (HOME / "ivy" / "jars").is_dir()


@cache
def _process() -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if name not in _OWN}
    process = subprocess.Popen(
        [HOME / "bin" / "python", PROGRAM],
        env={**kept, "TZ": "UTC", "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(process.communicate)  # at the end of its input it ends
    return process


def ask(name: str, *arguments: Any) -> Any:
    """Have one of the process's calls made; it ends with this process.

    Raises:
        EngineError: The call failed.
    """
    process = _process()
    if process.stdin is None or process.stdout is None:
        raise AssertionError
    pickle.dump((name, arguments), process.stdin)
    process.stdin.flush()
    is_done, answer = pickle.load(process.stdout)
    if not is_done:
        raise EngineError(answer)
    return answer
