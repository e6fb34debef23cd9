"""Find the destinations that the scheduled DAGs maintain, when a task runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from airflow.sdk.exceptions import AirflowException

from lockgate.storage_core.errors import InvalidInputError, LockgateError

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

R = TypeVar("R")

VARIABLE: Final = "lockgate_destinations"
ENVIRONMENT: Final = "LOCKGATE_DESTINATIONS"


def as_destinations(value: str | Iterable[str] | None) -> list[str]:
    """Return destinations passed as a list, or as text separated by commas or line breaks."""
    parts = value.replace(",", "\n").splitlines() if isinstance(value, str) else list(value or ())
    cleaned = (str(part).strip().rstrip("/") for part in parts)
    return list(dict.fromkeys(part for part in cleaned if part))


def named_destinations(several: str | Iterable[str] | None, one: str | None) -> list[str]:
    """Return the destinations of two parameters; `one` is not split at commas."""
    return as_destinations(several) + ([one] if one else [])


def watched_destinations(given: str | Iterable[str] | None) -> list[str]:
    """Return the given destinations, else those of the environment, else those of the Airflow Variable.

    Raises:
        InvalidInputError: No destination is configured.
    """
    found = as_destinations(given) or configured_destinations()
    if not found:
        raise InvalidInputError(
            f"no destination is configured: set the Airflow Variable {VARIABLE}, or {ENVIRONMENT} where "
            "Airflow's tasks run, to URLs or paths separated by commas; nothing was done"
        )
    return found


def configured_destinations() -> list[str]:
    """Return the destinations of the environment, else those of the Airflow Variable, else none."""
    return as_destinations(os.environ.get(ENVIRONMENT)) or _variable_destinations()


def for_each_destination(destinations: Iterable[str], work: Callable[[str], R], log: Logger) -> dict[str, R]:
    """Do the work at every destination, also after one has failed.

    Raises:
        AirflowException: At the end, if any failed; the message names each with its error.
    """
    results, failures = {}, []
    for destination in destinations:
        try:
            results[destination] = work(destination)
            log.info("%s: %s", destination, results[destination] or "nothing to do")
        except LockgateError as error:
            log.error("%s: %s: %s", destination, type(error).__name__, error)  # noqa: TRY400 - reported whole below
            failures.append(f"{destination}: {type(error).__name__}: {error}")
    if failures:
        raise AirflowException(f"{len(failures)} destinations need attention: {'; '.join(failures)}")
    return results


def _variable_destinations() -> list[str]:
    from airflow.sdk import Variable  # noqa: PLC0415 - calls Airflow's API server

    return as_destinations(Variable.get(VARIABLE, default=None))
