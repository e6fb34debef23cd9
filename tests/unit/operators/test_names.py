"""Tests of the names that DAG authors import: `from lockgate.operators import JobSetupOperator`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lockgate import operators
from tests.support.airflow.preloaded import answer_of

MODULES = """
import json, sys
from lockgate import operators
print(json.dumps(["airflow" in sys.modules, [name for name in sys.modules if "lockgate.operators." in name]]))
"""

ACCESS = """
from lockgate import operators
operators.TaskCommitOperator
ours = [name.split(".")[2] for name in sys.modules if name.startswith("lockgate.operators.")]
answer(sorted(set(ours)))
"""


def test_importing_the_package_imports_no_airflow_and_no_operator() -> None:
    done = subprocess.run([sys.executable, "-c", MODULES], check=True, capture_output=True, timeout=120)
    assert json.loads(done.stdout) == [False, []]


def test_accessing_an_operator_imports_its_module_and_no_other_operator() -> None:
    assert answer_of(ACCESS) == ["dag_run", "deferral", "tasks"]


def test_every_exported_name_is_the_operator_notifier_or_function_of_that_name_in_order() -> None:
    from airflow.sdk import BaseNotifier, BaseOperator

    assert operators.__all__ == sorted(operators.__all__)
    for name in operators.__all__:
        operator = getattr(operators, name)
        assert operator.__name__ == name
        assert name == "lockgate_connection" or issubclass(operator, BaseOperator | BaseNotifier)
    assert set(operators.__all__) <= set(dir(operators))


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchOperator"):
        _ = operators.NoSuchOperator
