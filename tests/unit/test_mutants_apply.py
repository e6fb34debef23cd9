"""Every mutant of `make mutants` still edits the code that it is meant for."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.broken_rules import MUTANTS, Mutant
from scripts.mutants import TREE, applied, copy


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = tmp_path_factory.mktemp("tree")
    copy(TREE, copied)
    return copied


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_its_files_and_they_still_parse(mutant: Mutant, tree: Path) -> None:
    before = {edit.path: (tree / edit.path).read_text() for edit in mutant.edits}
    with applied(mutant, tree):
        for path, text in before.items():
            mutated = (tree / path).read_text()
            assert mutated != text
            ast.parse(mutated)
    assert before == {edit.path: (tree / edit.path).read_text() for edit in mutant.edits}


def test_the_tests_that_mutants_must_fail_run_in_make_test() -> None:
    tests = {mutant.tests for mutant in MUTANTS}
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    environment = {name: value for name, value in os.environ.items() if name != "LOCKGATE_TEST_SOAK"}
    collected = subprocess.run(
        collect, cwd=TREE, env=environment, check=False, capture_output=True, text=True
    )
    assert collected.returncode == 0, collected.stdout
    chosen = collected.stdout.splitlines()
    assert [test for test in tests if not any(line.startswith(test) for line in chosen)] == []


def test_the_tests_of_a_copied_tree_import_the_files_that_a_mutant_edits(tree: Path) -> None:
    for path in {edit.path for mutant in MUTANTS for edit in mutant.edits}:
        assert (tree / "lockgate" / path).samefile(tree / path)
