"""Run one `SparkWork` in one Spark session: the program of the child process."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lockgate.operators.spark_process.process import LENGTH_BYTES, SparkWork
from lockgate.storage_core.blobs.blob_protocol import Artefacts
from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.blobs.library import NO_LIBRARIES, Libraries, LibraryCache
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.settings import load_settings, settings_in_effect
from lockgate.storage_core.spark.s3a import configure_s3a, merged_config, s3a_jars
from lockgate.storage_core.spark.s3a_fetch import announced, ivy_folder
from lockgate.storage_core.spark.session import add_libraries, library_config, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORPHANED: Final = 120
"""Exit code of a child whose parent died."""


def resolve(reference: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that `package.module:name` names, or the given function.

    Raises:
        InvalidInputError: There is no such module, or no such function in it.
    """
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            f"{reference!r} is not a function: write package.module:name, importable by the task ({error})"
        ) from error
    if not callable(found):
        raise InvalidInputError(f"{reference!r} is not a function but of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _do(work: SparkWork) -> Any:
    run = resolve(work.run)
    with settings_in_effect(work.settings), _libraries(work.artefacts) as libraries:
        spark = _remote_session(work, libraries) if work.remote else _session(work, libraries)
        try:
            return run(spark, **work.arguments)
        finally:
            spark.stop()


def _session(work: SparkWork, libraries: Libraries) -> SparkSession:
    settings = load_settings()
    jars = s3a_jars(settings) if work.reads_s3 else {}
    config = merged_config(jars, library_config(libraries), work.config)
    fetches = "spark.jars.packages" in jars and "spark.jars.ivy" not in config
    with announced(_say, ivy_folder()) if fetches else nullcontext():
        spark = spark_session(work.app_name, master=work.master, config=config)
    if work.reads_s3:
        configure_s3a(spark, settings)
    add_libraries(spark, libraries)
    return spark


def _say(line: str) -> None:
    """Print a line, which the task logs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _remote_session(work: SparkWork, libraries: Libraries) -> SparkSession:
    if libraries != NO_LIBRARIES:
        raise InvalidInputError(
            "the job has libraries, and they are not sent to a Spark Connect server; nothing was started; "
            "install them there, or use a master"
        )
    return spark_session(work.app_name, config=work.config, remote=work.remote)


@contextmanager
def _libraries(artefacts: Mapping[str, Any] | None) -> Iterator[Libraries]:
    """Hold a job's libraries while its session runs: executors fetch them from here."""
    if artefacts is None:
        yield NO_LIBRARIES
        return
    cache = configured_cache(load_settings())
    with LibraryCache(cache).pinned(Artefacts.of_handle(artefacts)) as libraries:
        yield libraries


def _exit_with_parent() -> None:
    # Not through the buffered reader: a thread blocked in it breaks the interpreter's exit.
    while os.read(0, 1):
        continue
    os._exit(ORPHANED)


def _read_work() -> SparkWork:
    length = int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES))
    # From the parent, through a pipe that no other process can write.
    work: SparkWork = pickle.loads(sys.stdin.buffer.read(length))  # noqa: S301
    return work


def main(answer: Path) -> int:
    """Read the work, do it, and write `{"result"}` or `{"type", "message"}` to the answer file."""
    report: dict[str, Any]
    try:
        work = _read_work()
        threading.Thread(target=_exit_with_parent, daemon=True).start()
        report = {"result": _do(work)}
    except Exception as error:  # noqa: BLE001 - the parent raises it again
        if not isinstance(error, LockgateError):  # the message of a LockgateError is sufficient
            traceback.print_exc()
        report = {"type": type(error).__name__, "message": str(error)}
    answer.write_text(json.dumps(report))
    return 0 if "result" in report else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
