"""Check the parameters of a restricted operator against the allow-lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from lockgate.operators.dag_run.destinations import as_destinations
from lockgate.operators.dag_run.job_handle import check_handle
from lockgate.operators.dag_run.parameters import filled_in
from lockgate.operators.trigger_rights.allow_lists import AllowLists
from lockgate.operators.trigger_rights.suites import check_suite

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
    "destination": AllowLists.destination,
    "destinations": _destinations,
    "driver_memory": _driver_memory,
    "files": _files,
    "job": _job,
    "master": _master,
    "op_kwargs": _op_kwargs,
    "packages": _packages,
    "spark_config": _spark_config,
    "staging": AllowLists.staged,
    "suite": _suite,
}
"""Parameters that name a place, code or a configuration. All others are data, ids, or one of a few words."""
