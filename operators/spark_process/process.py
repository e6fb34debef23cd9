"""A Spark session in a process of its own: a clean JVM for every task, that dies with the task.

The parent writes a pickled `SparkWork` to the child's standard input and leaves it open. When the parent
dies, however suddenly, the child reads the end of its input and exits at once, and the JVM, which watches the
child the same way, exits after it: nothing goes on writing for a task that is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from lockgate.storage_core import errors
from lockgate.storage_core.errors import LockgateError

LENGTH_BYTES: Final = 8


@dataclass(frozen=True)
class SparkWork:
    """What the child does: `run(spark, **arguments)`, whose result must be JSON.

    Attributes:
        run: A function, or a reference to one: `package.module:name`.
        arguments: Its keyword arguments.
        master: Spark's.
        app_name: What Spark calls the application.
        config: Spark settings.
        artefacts: Handle of what the job was uploaded with: its libraries are the session's.
    """

    run: str | Callable[..., Any]
    arguments: Mapping[str, Any]
    master: str = "local[*]"
    app_name: str = "lockgate"
    config: Mapping[str, str] = field(default_factory=dict)
    artefacts: Mapping[str, Any] | None = None


class LineLog(Protocol):
    """Where the lines that the child prints go: a task's log, or any other."""

    def info(self, message: Any, /, *arguments: Any) -> Any:
        """Take a message."""


class SparkChildError(Exception):
    """The child ended without a result, or a user's function raised; its output is in the task's log."""


class SparkChild:
    """One child process; `kill` may be called from a signal handler."""

    def __init__(self, log: LineLog) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, work: SparkWork) -> Any:
        """Do the work and return its result; every line that the child prints goes to the log.

        Raises:
            LockgateError: Of the type that the child raised.
            SparkChildError: The work raised anything else, or the child was killed.
        """
        payload = pickled(work)
        with tempfile.TemporaryDirectory(prefix="lockgate-spark-") as folder:
            answer = Path(folder, "answer.json")
            with subprocess.Popen(
                [sys.executable, "-m", "lockgate.operators.spark_process.child", str(answer)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # What the task can import, as a module beside its DAG file, the child can.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            ) as process:
                self._process = process
                try:
                    self._talk(process, payload)
                finally:
                    self.kill()
            return _result(answer, process.returncode)

    def kill(self) -> None:
        """End the child and its JVM, if they still run."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _talk(self, process: subprocess.Popen[bytes], payload: bytes) -> None:
        assert process.stdin is not None  # noqa: S101 - for the type checker: a pipe was asked for
        assert process.stdout is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):  # of a child that died at once; its output says why
            process.stdin.write(len(payload).to_bytes(LENGTH_BYTES) + payload)
            process.stdin.flush()
        for line in process.stdout:
            self._log.info("%s", line.decode(errors="replace").rstrip())
        process.wait()


def pickled(work: SparkWork) -> bytes:
    """Pickle the work; functions of modules that the child could not import go by value."""
    from pyspark import cloudpickle as untyped  # noqa: PLC0415 - imports PySpark

    cloudpickle: Any = untyped
    functions = [work.run, *(value for value in work.arguments.values() if callable(value))]
    modules = {sys.modules.get(getattr(function, "__module__", None) or "") for function in functions}
    with contextlib.ExitStack() as registered:
        for module in filter(None, modules):
            if not _child_can_import(module):
                cloudpickle.register_pickle_by_value(module)
                registered.callback(cloudpickle.unregister_pickle_by_value, module)
        return bytes(cloudpickle.dumps(work))


def _child_can_import(module: ModuleType) -> bool:
    # Airflow gives DAG files names that it invents, which no other process finds.
    return PathFinder.find_spec(module.__name__.partition(".")[0]) is not None


def _result(answer: Path, returncode: int) -> Any:
    try:
        told = json.loads(answer.read_text())
    except FileNotFoundError:
        raise SparkChildError(
            f"the Spark process ended with code {returncode} and without a result; what it staged is no part "
            "of the job; its last lines are above"
        ) from None
    if "result" in told:
        return told["result"]
    kind = getattr(errors, told["type"], None)
    if isinstance(kind, type) and issubclass(kind, LockgateError):
        raise kind(told["message"])
    raise SparkChildError(f"{told['type']}: {told['message']}; the traceback is above")
