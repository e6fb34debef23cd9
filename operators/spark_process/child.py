"""The program in the child process of `spark_process`: one piece of work in one Spark session."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lockgate.operators.spark_process.process import LENGTH_BYTES, SparkWork
from lockgate.storage_core.blobs import Artefacts
from lockgate.storage_core.blobs.cache.process_cache import configured_cache
from lockgate.storage_core.blobs.libraries.library import NO_LIBRARIES, Libraries, LibraryCache
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.spark import spark_session
from lockgate.storage_core.spark.libraries import add_libraries, library_config

ORPHANED: Final = 120
"""Exit code of a child whose parent died."""


def resolve(reference: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that `package.module:name` names; a function is its own.

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
            f"{reference!r} is no function: write package.module:name, importable by the task ({error})"
        ) from error
    if not callable(found):
        raise InvalidInputError(f"{reference!r} is no function but of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _do(work: SparkWork) -> Any:
    run = resolve(work.run)
    with _libraries(work.artefacts) as libraries:
        config = {**library_config(libraries), **work.config}
        spark = spark_session(work.app_name, master=work.master, config=config)
        try:
            add_libraries(spark, libraries)
            return run(spark, **work.arguments)
        finally:
            spark.stop()


@contextmanager
def _libraries(artefacts: Mapping[str, Any] | None) -> Iterator[Libraries]:
    """Hold a job's libraries until its session has stopped: executors fetch them from here."""
    if artefacts is None:
        yield NO_LIBRARIES
        return
    cache = configured_cache(load_settings())
    with LibraryCache(cache).holding(Artefacts.of_handle(artefacts)) as libraries:
        yield libraries


def _exit_with_parent() -> None:
    # Straight from the descriptor: a thread that waits in the buffered reader breaks the interpreter's exit.
    while os.read(0, 1):
        continue
    os._exit(ORPHANED)


def _read_work() -> SparkWork:
    length = int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES))
    # From our own parent, through a pipe that nobody else can write.
    work: SparkWork = pickle.loads(sys.stdin.buffer.read(length))  # noqa: S301
    return work


def _failure(error: Exception) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": str(error)}


def main(answer: Path) -> int:
    """Read the work, do it, and leave `{"result"}` or `{"type", "message"}` in the answer file."""
    told: dict[str, Any]
    try:
        work = _read_work()
        threading.Thread(target=_exit_with_parent, daemon=True).start()
        told = {"result": _do(work)}
    except LockgateError as error:
        told = _failure(error)  # whose message says it all
    except Exception as error:  # noqa: BLE001 - the parent raises it again
        traceback.print_exc()
        told = _failure(error)
    answer.write_text(json.dumps(told))
    return 0 if "result" in told else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
