"""Tests of the names that DAG authors import: `from lockgate.operators import JobSetupOperator`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lockgate import operators

MODULES = """
import json, sys
from lockgate import operators
for name in sys.argv[1:]:
    getattr(operators, name)
ours = [name.split(".")[2] for name in sys.modules if name.startswith("lockgate.operators.")]
print(json.dumps({"airflow": "airflow" in sys.modules, "ours": sorted(set(ours))}))
"""


def modules_after(*names: str) -> dict[str, object]:
    command = [sys.executable, "-c", MODULES, *names]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    return dict(json.loads(output.splitlines()[-1]))


def test_importing_the_package_imports_no_airflow_and_no_operator() -> None:
    assert modules_after() == {"airflow": False, "ours": []}


def test_accessing_an_operator_imports_its_module_and_no_other_operator() -> None:
    assert modules_after("TaskCommitOperator") == {
        "airflow": True,
        "ours": ["dag_run", "deferral", "tasks"],
    }


def test_every_exported_name_is_the_operator_or_notifier_of_that_name_in_order() -> None:
    from airflow.sdk import BaseNotifier, BaseOperator

    assert operators.__all__ == sorted(operators.__all__)
    for name in operators.__all__:
        operator = getattr(operators, name)
        assert (operator.__name__, issubclass(operator, BaseOperator | BaseNotifier)) == (name, True)
    assert set(operators.__all__) <= set(dir(operators))


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchOperator"):
        _ = operators.NoSuchOperator
