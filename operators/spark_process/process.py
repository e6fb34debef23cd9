"""Run a Spark session in a child process: a clean JVM for every task, which ends with the task.

The parent writes a pickled `SparkWork` to the child's standard input and keeps it open. If the parent dies,
even by SIGKILL, the child reads the end of its input and exits at once; the JVM watches the child in the same
way. So no process continues to write for a task that has ended. The child's environment has what Spark,
Python and Lockgate need, and no secret of Airflow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from lockgate.storage_core import errors
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.settings import load_settings

if TYPE_CHECKING:
    from lockgate.storage_core.settings import Settings

LENGTH_BYTES: Final = 8
CHILD: Final = (sys.executable, "-m", "lockgate.operators.spark_process.child")

Part = Literal["journal", "s3"]
"""What a child may connect to with credentials from its environment."""

ALL: Final[frozenset[Part]] = frozenset({"journal", "s3"})

_ALWAYS: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP"),
    *("JAVA_HOME", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "LD_*", "SPARK_*", "PYSPARK_*", "PYTHON*"),
    *("HADOOP_*", "YARN_CONF_DIR", "KRB5*", "VIRTUAL_ENV", "AIRFLOW_HOME", "GX_*", "LOCKGATE_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
_NEVER: Final = ("LOCKGATE_BROKER_URL",)
_ONLY: Final[dict[Part, tuple[str, ...]]] = {
    "journal": ("LOCKGATE_JOURNAL_URL", "LOCKGATE_OBSERVER_URLS"),
    "s3": ("AWS_*",),
}


@dataclass(frozen=True)
class SparkWork:
    """A call that the child makes: `run(spark, **arguments)`, which must return JSON values.

    Attributes:
        run: A function, or a reference to one: `package.module:name`.
        arguments: Its keyword arguments.
        master: Spark master URL.
        app_name: Name of the Spark application.
        config: Spark settings.
        remote: URL of a Spark Connect server, in place of a master.
        reads_s3: Whether the session gets an S3 file system.
        artefacts: Handle of the artefacts whose libraries the session gets.
        settings: Settings of the child, with the credentials of a connection; None: those of its environment.
        needs: What the child may connect to with credentials of this environment.
    """

    run: str | Callable[..., Any]
    arguments: Mapping[str, Any]
    master: str = "local[*]"
    app_name: str = "lockgate"
    config: Mapping[str, str] = field(default_factory=dict)
    remote: str | None = field(default=None, repr=False)
    reads_s3: bool = False
    artefacts: Mapping[str, Any] | None = None
    settings: Settings | None = field(default=None, repr=False)
    needs: frozenset[Part] = ALL


class LineLog(Protocol):
    """Log for the lines that the child prints, such as a task's log."""

    def info(self, message: Any, /, *arguments: Any) -> Any:
        """Log a message."""

    def error(self, message: Any, /, *arguments: Any) -> Any:
        """Log an error."""


class SparkChildError(Exception):
    """The child ended without a result, or a user's function raised; its output is in the task's log."""


class SparkChild:
    """One child process; `kill` may be called from a signal handler."""

    def __init__(self, log: LineLog) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, work: SparkWork) -> Any:
        """Run the work in the child, log every line that it prints, and return the result.

        Raises:
            LockgateError: The error that the child raised, with its type.
            SparkChildError: The work raised another error, or the child was killed.
        """
        payload = pickled(work)
        with tempfile.TemporaryFile() as answer:  # without a name, so that a killed task leaves none
            with subprocess.Popen(
                [*CHILD, f"/dev/fd/{answer.fileno()}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=child_environment(work.needs),
                pass_fds=[answer.fileno()],
                start_new_session=True,
            ) as process:
                self._process = process
                try:
                    self._communicate(process, payload)
                finally:
                    self.kill()
            answer.seek(0)  # macOS: the child's descriptor shares the position
            return _result(answer.read(), process.returncode)

    def kill(self) -> None:
        """End the child and its JVM, if they still run; log an error, which must not hide why they end."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except OSError as error:
                self._log.error(
                    "the Spark process %d was not ended: %s; it ends with the process of this task",
                    process.pid,
                    error,
                )

    def _communicate(self, process: subprocess.Popen[bytes], payload: bytes) -> None:
        assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        assert process.stdout is not None  # noqa: S101
        with suppress(BrokenPipeError):  # the child died at once; its output has the reason
            process.stdin.write(len(payload).to_bytes(LENGTH_BYTES) + payload)
            process.stdin.flush()
        for line in process.stdout:
            self._log.info("%s", line.decode(errors="replace").rstrip())
        process.wait()


def pickled(work: SparkWork) -> bytes:
    """Pickle the work; functions of modules that the child cannot import are pickled by value."""
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    functions = [work.run, *(value for value in work.arguments.values() if callable(value))]
    modules = {sys.modules.get(getattr(function, "__module__", None) or "") for function in functions}
    with ExitStack() as registered:
        for module in filter(None, modules):
            if not _child_can_import(module):
                cloudpickle.register_pickle_by_value(module)
                registered.callback(cloudpickle.unregister_pickle_by_value, module)
        return bytes(cloudpickle.dumps(work))


def _child_can_import(module: ModuleType) -> bool:
    # Airflow gives the modules of DAG files invented names, which no other process can import.
    return PathFinder.find_spec(module.__name__.partition(".")[0]) is not None


def _result(answer: bytes, returncode: int) -> Any:
    if not answer:
        raise SparkChildError(
            f"the Spark process ended with code {returncode} and without a result; the files that it staged "
            "are not part of the job; its last lines are above"
        )
    reported = json.loads(answer)
    if "result" in reported:
        return reported["result"]
    kind = getattr(errors, reported["type"], None)
    if isinstance(kind, type) and issubclass(kind, LockgateError):
        raise kind(reported["message"])
    raise SparkChildError(f"{reported['type']}: {reported['message']}; the traceback is above")


def child_environment(parts: Collection[Part] = ALL) -> dict[str, str]:
    """Return the environment of a Spark child.

    Args:
        parts: What the child needs besides Spark: the journal's URL, AWS's variables, or both. The setting
            `LOCKGATE_SPARK_ENVIRONMENT` names more variables.
    """
    more = load_settings().spark_environment
    wanted = (*_ALWAYS, *(pattern for part in parts for pattern in _ONLY[part]))
    refused = (*_NEVER, *(pattern for part in ALL - set(parts) for pattern in _ONLY[part]))
    kept = {
        name: value
        for name, value in os.environ.items()
        if _matches(name, more) or (_matches(name, wanted) and not _matches(name, refused))
    }
    # The child can import what the task can, such as a module beside the DAG file.
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
