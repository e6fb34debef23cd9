"""The structure of the code: no import cycles, few modules per folder, unique names."""

from __future__ import annotations

import os
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import grimp
import pytest

from tests.conftest import engines_at_collection

ROOT = Path(__file__).parents[2]
CORE = "lockgate.storage_core"
MOST_MODULES = 24

TWINS: dict[str, str] = {}
"""File names allowed in two neighbouring layers, with their contents: the folders distinguish them."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Return the import graph, including imports in functions and for the type checker."""
    return grimp.build_graph("lockgate", "examples", exclude_type_checking_imports=False, cache_dir=None)


def test_deferred_and_type_only_imports_are_counted(graph: grimp.ImportGraph) -> None:
    deferred, type_only = "lockgate.operators.dag_files", "lockgate.storage_core.settings"

    assert deferred in graph.find_modules_directly_imported_by("lockgate.operators.commands")
    assert type_only in graph.find_modules_directly_imported_by("lockgate")


def test_modules_have_no_import_cycle(graph: grimp.ImportGraph) -> None:
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}

    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of modules: {' <- '.join(error.args[1])}")


def test_a_folder_has_few_modules() -> None:
    modules = {
        Path(folder).relative_to(ROOT): sorted(
            file for file in files if file.endswith(".py") and file != "__init__.py"
        )
        for part in ("lockgate", "examples")
        for folder, _, files in os.walk(ROOT / part, followlinks=True)
    }

    assert len(modules) > 20
    assert {str(folder): found for folder, found in modules.items() if len(found) > MOST_MODULES} == {}


def test_neighbouring_layers_of_the_core_have_no_files_with_the_same_name(graph: grimp.ImportGraph) -> None:
    twins = defaultdict(set)
    for upper, lower in pairwise(_floors()):
        above, below = _by_name(graph, upper), _by_name(graph, lower)
        for name in above.keys() & below.keys():
            twins[name] |= above[name] | below[name]

    assert {name: sorted(modules) for name, modules in twins.items() if name not in TWINS} == {}
    assert TWINS.keys() - twins.keys() == set(), "these exceptions are needed no more: remove them from TWINS"


def _floors() -> list[list[str]]:
    """Return the packages of each layer of the core, from the top down, as the import contract lists them."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [
        contract
        for contract in configuration["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == [CORE]
    ]
    return [
        [f"{CORE}.{name.strip()}" for name in layer.replace(":", "|").split("|")]
        for layer in contract["layers"]
    ]


def _by_name(graph: grimp.ImportGraph, packages: list[str]) -> dict[str, set[str]]:
    """Return the modules of some packages, at every depth, by the names of their files."""
    found = defaultdict(set)
    for package in packages:
        for module in {package} | graph.find_descendants(package):
            if not graph.find_children(module):
                found[module.rpartition(".")[2]].add(module)
    return found


def test_no_lazily_imported_name_of_a_package_is_the_name_of_its_submodule(
    graph: grimp.ImportGraph,
) -> None:
    """An imported submodule becomes an attribute of its package and would hide the name."""
    packages = [import_module(name) for name in graph.modules if graph.find_children(name)]
    lazy = [package for package in packages if hasattr(package, "__getattr__")]
    hidden = set()
    for package in lazy:
        submodules = {child.rpartition(".")[2] for child in graph.find_children(package.__name__)}
        hidden |= {f"{package.__name__}.{name}" for name in submodules & set(package.__all__)}

    assert len(lazy) >= 4
    assert hidden == set()


@pytest.mark.skipif("LOCKGATE_TEST_CORE" not in os.environ, reason="only in `make test`")
def test_the_modules_of_the_tests_of_the_core_import_no_engine() -> None:
    assert not engines_at_collection, (
        "that takes seconds in each process: import it in the test, or move the test to one of `ENGINES` "
        "in scripts/run_tests.py"
    )
