"""Which errors Airflow should retry: all, but those that a retry could only meet again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from airflow.sdk.exceptions import AirflowFailException

from lockgate.storage_core.errors import (
    ArtefactsGoneError,
    AuditFailedError,
    InvalidInputError,
    JobFailedError,
    MalformedRecordError,
    UnsupportedStoreError,
)

SAME_AGAIN: Final = (
    InvalidInputError,
    MalformedRecordError,
    UnsupportedStoreError,
    AuditFailedError,
    JobFailedError,
    ArtefactsGoneError,
)
"""Errors that no retry changes."""


@contextmanager
def no_vain_retry() -> Iterator[None]:
    """Fail the task for good on an error that a retry could only meet again; raise others as they are.

    Every step may be repeated, so everything else is safe to retry.

    Raises:
        AirflowFailException: Instead of an error in `SAME_AGAIN`, with its type and message.
    """
    try:
        yield
    except SAME_AGAIN as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error
