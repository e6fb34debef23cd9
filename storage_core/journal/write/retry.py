"""Retry a transaction that the database rolled back, or whose commit got no answer."""

from __future__ import annotations

from typing import Final

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.journal.database.driver_errors import TransactionUndoneError

_TRIES: Final = 4


def tries() -> Retrying:
    """Return the attempts of one idempotent transaction."""
    return Retrying(
        retry=retry_if_exception_type((OutcomeUnknownError, TransactionUndoneError)),
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        reraise=True,
    )
