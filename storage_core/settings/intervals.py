"""Intervals of the scheduled DAGs, which every parse of their files reads: light to import."""

from __future__ import annotations

import os
import warnings
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lockgate.storage_core.errors import InvalidInputError

CENTURY_S: Final = 100 * 365 * 86_400.0
_PREFIX: Final = "lockgate_"
_DEPRECATED: Final = "library_cache_manager_cleanup_interval_s"


class Intervals(BaseModel):
    """The settings from which the DAGs' schedules are made."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    recovery_minutes: float = Field(default=5.0, gt=0, description="interval of the DAG job_recovery")
    retention_interval_s: float = Field(
        default=1_800.0, gt=0, le=CENTURY_S, description="unreferenced blobs live for one to two intervals"
    )
    library_cache_manager_cleanup_interval_s: float | None = Field(
        default=None,
        gt=0,
        le=CENTURY_S,
        description="deprecated name of retention_interval_s; causes a warning",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_deprecated_name(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Accept a value under a deprecated name, with a warning."""
        if given.get(_DEPRECATED) is None:
            return given
        if "retention_interval_s" in given:
            advice = "LOCKGATE_RETENTION_INTERVAL_S is also set and takes precedence"
        else:
            given = {**given, "retention_interval_s": given[_DEPRECATED]}
            advice = (
                "set LOCKGATE_RETENTION_INTERVAL_S instead; an unreferenced blob is deleted after one to two "
                "of these intervals, so half the value keeps the previous delay"
            )
        warnings.warn(f"LOCKGATE_{_DEPRECATED.upper()} is deprecated: {advice}", FutureWarning, stacklevel=2)
        return given


def load_intervals() -> Intervals:
    """Return the intervals that the environment has: a mistake in another setting must not stop the DAGs.

    Raises:
        InvalidInputError: An interval is invalid.
    """
    variables = {name.lower(): value for name, value in os.environ.items()}
    given = {
        name: variables[_PREFIX + name] for name in Intervals.model_fields if _PREFIX + name in variables
    }
    try:
        return Intervals.model_validate(given)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> InvalidInputError:
    """Return the error that names each variable with an invalid value."""
    problems = "; ".join(
        f"LOCKGATE_{str(e['loc'][0]).upper()}: {e['msg']}" if e["loc"] else e["msg"] for e in error.errors()
    )
    return InvalidInputError(f"settings: {problems}")
