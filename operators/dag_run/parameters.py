"""Check operator parameters after their templates are rendered, and find the configured destinations."""

from __future__ import annotations

import math
import os
from ast import literal_eval
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from airflow.sdk import Variable

from lockgate.storage_core.errors import InvalidInputError

VARIABLE: Final = "lockgate_destinations"
ENVIRONMENT: Final = "LOCKGATE_DESTINATIONS"


def from_template(value: Any) -> Any:
    """Return the list or mapping of which a template has made text; other values as they are.

    A template gives text, unless the DAG has `render_template_as_native_obj`.
    """
    if isinstance(value, str) and value.startswith(("{", "[")):
        with suppress(ValueError, SyntaxError):
            return literal_eval(value)
    return value


def check_bool(name: str, value: object) -> bool:
    """Return the value, and refuse text: "False" would count as true.

    Raises:
        InvalidInputError: The value is neither true nor false.
    """
    if not isinstance(value, bool):
        raise InvalidInputError(
            f"{name}={value!r} is neither true nor false; pass dag.param(…) instead of a template; "
            "nothing was done"
        )
    return value


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        InvalidInputError: It is none of them.
    """
    if value not in (known := list(choices)):
        raise InvalidInputError(f"{name}={value!r}: must be one of {', '.join(known)}; nothing was done")


def seconds(name: str, value: float | str) -> float:
    """Return a time in seconds, also from the text of a template.

    Raises:
        InvalidInputError: It is not a number, is negative, or is not finite.
    """
    number = _number(name, value)
    if number < 0 or not math.isfinite(number):
        raise InvalidInputError(f"{name}={value!r} must be seconds, 0 or more; nothing was done")
    return number


def seconds_or_none(name: str, value: float | str | None) -> float | None:
    """Return a time in seconds; None for None, and for its text in a template."""
    return None if value is None or value in ("", "None") else seconds(name, value)


def positive(name: str, value: int | str) -> int:
    """Return a whole number of 1 or more, also from the text of a template.

    Raises:
        InvalidInputError: It is not a whole number, or less than 1.
    """
    number = _number(name, value)
    if number < 1 or number % 1:
        raise InvalidInputError(f"{name}={value!r} must be a whole number, 1 or more; nothing was done")
    return int(number)


def filled_in(lines: Iterable[str] | str | None) -> list[str]:
    """Return texts without blank ones: a list that was emptied in Airflow's form is `[""]`."""
    listed = [lines] if isinstance(lines, str) else lines or ()
    return [str(line) for line in listed if str(line).strip()]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidInputError(f"{name}={value!r} is not a number; nothing was done")
    try:
        return float(value)
    except ValueError:
        raise InvalidInputError(f"{name}={value!r} is not a number; nothing was done") from None


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


def _variable_destinations() -> list[str]:
    return as_destinations(Variable.get(VARIABLE, default=None))
