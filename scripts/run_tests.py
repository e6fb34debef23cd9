#!/usr/bin/env python3
"""Run the tests: those of the core beside those that import Airflow and those that import PySpark.

    python -m scripts.run_tests [pytest's arguments]           `make test`: every promise once, on real parts
    python -m scripts.run_tests --fast [pytest's arguments]    only the core, without servers and slow tests
    python -m scripts.run_tests --soak [pytest's arguments]    `make soak`: every test, with long storms

Airflow and PySpark take seconds of CPU time to import, in each process of a run. So one process runs all
tests that need Airflow, with one home, and one those that need Spark, with one JVM, beside those of the core.
Their output is printed when all have ended. The last line counts all.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts.with_servers import contained, memory, postgres, s3

PYTEST: Final = (sys.executable, "-m", "pytest", "-m", "not demo")
ENGINES: Final = {
    "Airflow": ("tests/unit/operators", "tests/unit/plugins", "tests/integration"),
    "PySpark": ("tests/unit/benchmarks", "tests/unit/spark", "tests/integration/spark"),
}
"""Folders of the tests that import an engine. A folder inside one of another engine is left to its own."""

CORE: Final = ("tests/model", "tests/fault", "tests/unit", "tests/contract")
IS_CORE: Final = {"LOCKGATE_TEST_CORE": "1"}
"""Environment of processes that may import no engine."""

FAST: Final = ("-m", "not integration and not fault and not requires and not slow")
# The tests of a file run in one process, because they share fixtures that are slow to set up.
IN_PARALLEL: Final = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")

NO_TESTS: Final = 5
"""Pytest's exit code if its arguments choose no test."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests and return an exit code: 0 all passed, else pytest's."""
    is_fast, is_soak = "--fast" in arguments, "--soak" in arguments
    chosen = [argument for argument in arguments if argument not in {"--fast", "--soak"}]
    core = [*PYTEST, *_without_others(CORE), *IN_PARALLEL, *chosen]
    if is_soak:
        os.environ.setdefault("LOCKGATE_TEST_SOAK", "1")
    with memory(), contained(), contextlib.ExitStack() as servers:
        if is_fast:
            return subprocess.Popen([*core, *FAST], env={**os.environ, **IS_CORE}).wait()
        servers.enter_context(s3())
        servers.enter_context(postgres())
        beside = {
            engine: [*PYTEST, *_without_others(folders), *chosen] for engine, folders in ENGINES.items()
        }
        return _run_beside(core, beside)


def _without_others(folders: Sequence[str]) -> list[str]:
    """Return pytest's arguments for these folders without those of engines inside them."""
    others = {folder for of_engine in ENGINES.values() for folder in of_engine} - set(folders)
    inside = [other for other in sorted(others) if any(other.startswith(f"{folder}/") for folder in folders)]
    return [*folders, *(f"--ignore={folder}" for folder in inside)]


def _run_beside(core: Sequence[str], beside: Mapping[str, Sequence[str]]) -> int:
    """Run all at the same time; show the core's while it runs, and the others' afterwards."""
    with contextlib.ExitStack() as outputs:
        running = {}
        for engine, command in beside.items():
            output = outputs.enter_context(tempfile.TemporaryFile(mode="w+"))
            running[engine] = output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        # Without `with`, which would wait for it before a signal can end it.
        shown = subprocess.Popen(core, stdout=subprocess.PIPE, text=True, env={**os.environ, **IS_CORE})
        texts = [""]
        for texts[0] in shown.stdout or ():
            sys.stdout.write(texts[0])
            sys.stdout.flush()
        codes = [shown.wait()]
        for engine, (output, process) in running.items():
            codes.append(process.wait())
            output.seek(0)
            texts.append(output.read())
            sys.stdout.write(f"\nThe tests that import {engine}:\n\n{texts[-1]}")
    sys.stdout.write(f"\n{_total(*texts)}\n")
    failed = [code for code in codes if code not in {0, NO_TESTS}]
    return failed[0] if failed else min(codes)


def _total(*outputs: str) -> str:
    """Add the counts of pytest's last lines."""
    counts = Counter[str]()
    for output in outputs:
        for count, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)", output.rpartition("\n=")[2]):
            counts["failed" if what.startswith("error") else what] += int(count)
    return ", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped"))


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    sys.exit(main(sys.argv[1:]))
