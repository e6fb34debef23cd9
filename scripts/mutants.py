#!/usr/bin/env python3
"""Mutation tests: break one rule of the journal or the blobs at a time, and check that the tests fail.

    python -m scripts.mutants                     run every mutant in a copy of this tree; print a table
    python -m scripts.mutants renew-any-stamp     run only the named mutants

A mutant is a small edit of source text. `tests/unit/test_mutants_apply.py` checks that its old text occurs
exactly once in its file. The tests first run without any edit, so that no mutant is killed by a test that
fails anyway.

Exit codes: 0 every mutant was killed, 1 a mutant survived, 2 the tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from scripts.broken_rules import MUTANTS, Mutant

TREE: Final = Path(__file__).resolve().parent.parent
COPIED: Final = (
    "lockgate",
    "storage_core",
    "operators",
    "workers",
    "plugins",
    "dags",
    "examples",
    "tests",
    "scripts",
    "pyproject.toml",
)
TESTS_FAILED: Final = 1
"""Pytest's exit code for failed tests; with any other the run proves nothing."""


@dataclass(frozen=True)
class Run:
    """Result of a test run.

    Attributes:
        failed: The first failure: the test and the reason.
    """

    code: int
    failed: str
    output: str
    took_s: float


def main() -> int:
    """Run the named mutants, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="MUTANT", choices=[[], *(m.name for m in MUTANTS)])
    names = parser.parse_args().names
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    console = Console() if sys.stdout.isatty() else Console(width=150)
    with tempfile.TemporaryDirectory(prefix="lockgate-mutants-") as root:
        tree = Path(root)
        copy(TREE, tree)
        for tests in dict.fromkeys(mutant.tests for mutant in chosen):
            run = run_tests(tree, tests)
            if run.code != 0:
                console.print(f"without a mutant, {tests} exits with {run.code}:\n{run.output}", markup=False)
                return 2
        survived = 0
        table = Table("mutant", "what it breaks", "killed by", "s")
        with console.status("") as status:
            for mutant in chosen:
                status.update(mutant.name)
                with applied(mutant, tree):
                    run = run_tests(tree, mutant.tests)
                is_killed = run.code == TESTS_FAILED and bool(run.failed)
                survived += not is_killed
                killer = run.failed if is_killed else f"SURVIVED (pytest exits with {run.code})"
                table.add_row(mutant.name, mutant.breaks, killer.replace("[", r"\["), f"{run.took_s:.0f}")
    console.print(table)
    console.print(f"{len(chosen) - survived} of {len(chosen)} mutants killed")
    return 1 if survived else 0


def copy(tree: Path, to: Path) -> None:
    """Copy the files that the tests need."""
    for name in COPIED:
        if (tree / name).is_dir():
            # The links in `lockgate` stay links: the tests import through them what a mutant edits.
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(tree / name, to / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy(tree / name, to / name)


@contextmanager
def applied(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Apply a mutant's edits to a tree during the block."""
    before = {edit.path: (tree / edit.path).read_text() for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            edit.apply(tree)
        yield
    finally:
        for path, text in before.items():
            (tree / path).write_text(text)


def run_tests(tree: Path, tests: str) -> Run:
    """Run tests in a tree until the first fails."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", tests, "-x", "-q", "--tb=line", "-p", "no:cacheprovider"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    failed = re.search(r"^FAILED \S*::(.+)$", done.stdout, re.MULTILINE)
    failure = "" if failed is None else failed[1]
    return Run(done.returncode, failure, done.stdout + done.stderr, time.monotonic() - began_s)


if __name__ == "__main__":
    sys.exit(main())
