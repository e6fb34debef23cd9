"""Check the parameters of a restricted operator against the allow-lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lockgate.operators.dag_run.destinations import as_destinations
from lockgate.operators.dag_run.job_handle import check_handle
from lockgate.operators.dag_run.parameters import filled_in
from lockgate.operators.trigger_rights.allow_lists import AllowLists
from lockgate.operators.trigger_rights.suites import check_suite
from lockgate.storage_core.errors import InvalidInputError

READ_FILES: Final = "lockgate.operators.dag_run.sources:read_files"
"""The function of `dataset_commit`, which checks its arguments itself."""

_PLACES: Final = frozenset({"path", "paths", "basepath"})

Check = Callable[[AllowLists, Any], None]


def check_parameters(allowed: AllowLists, parameters: Mapping[str, Any]) -> None:
    """Check the rendered parameters of an operator, by their names.

    Raises:
        InvalidInputError: One is not allowed.
    """
    for name, value in parameters.items():
        if name in CHECKS and value:
            CHECKS[name](allowed, value)


def _job(allowed: AllowLists, handle: Any) -> None:
    # Airflow lets some users edit XCom values, so a handle may be one that no task returned.
    allowed.destination(check_handle(handle)["destination"])


def _destinations(allowed: AllowLists, destinations: Any) -> None:
    for destination in as_destinations(destinations):
        allowed.destination(destination)


def _files(allowed: AllowLists, files: Any) -> None:
    for path in filled_in(files):
        allowed.library(path)


def _op_kwargs(allowed: AllowLists, op_kwargs: Mapping[str, Any]) -> None:
    # The function checks them again, with what they stand for; here they are refused before Spark starts.
    if source := op_kwargs.get("source"):
        allowed.source(source)
    if transform := op_kwargs.get("transform"):
        allowed.transform(transform)
    if options := op_kwargs.get("source_options"):
        allowed.options("source_options", options)


def _python_callable(allowed: AllowLists, function: Any) -> None:
    if isinstance(function, str) and function != READ_FILES:  # a function itself is the author's
        allowed.transform(function)


def _options(allowed: AllowLists, options: Mapping[str, str]) -> None:
    # Spark compares their names without case, and gives those with a dot to Hadoop, which can load classes.
    for name in options:
        if name.lower() in _PLACES or not re.fullmatch(r"\w+", name):
            raise InvalidInputError(
                f"options: {name!r} is not allowed in a form: it names a place, or configures Hadoop; "
                "nothing was read or written; leave it out"
            )
    allowed.options("options", options)


def _data_docs(_: AllowLists, directory: Any) -> None:
    raise InvalidInputError(
        f"data_docs {directory!r} is not allowed in a restricted task: it names a directory to write; "
        "nothing was read or written; leave it out, or audit in a DAG whose tasks are not restricted"
    )


def _suite(_: AllowLists, suite: Any) -> None:
    check_suite(suite)


def _spark_config(allowed: AllowLists, config: Mapping[str, str]) -> None:
    for setting, value in config.items():
        allowed.spark(setting, value)


def _master(allowed: AllowLists, master: str) -> None:
    allowed.spark("spark.master", master)


def _driver_memory(allowed: AllowLists, memory: str) -> None:
    allowed.spark("spark.driver.memory", memory)


def _packages(allowed: AllowLists, packages: Any) -> None:
    for package in filled_in(packages):
        allowed.spark("spark.jars.packages", package)


CHECKS: Final[Mapping[str, Check]] = {
    "artefacts": AllowLists.artefacts,
    "data_docs": _data_docs,
    "destination": AllowLists.destination,
    "destinations": _destinations,
    "driver_memory": _driver_memory,
    "files": _files,
    "job": _job,
    "master": _master,
    "op_kwargs": _op_kwargs,
    "options": _options,
    "packages": _packages,
    "python_callable": _python_callable,
    "spark_config": _spark_config,
    "staging": AllowLists.staged,
    "suite": _suite,
}
"""Parameters that name a place, code or a configuration. All others are data, ids, or one of a few words."""
