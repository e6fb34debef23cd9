"""Fail a task without retries on errors that a retry cannot change."""

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
    JournalVersionError,
    MalformedRecordError,
    RecordVersionError,
    UnsupportedStoreError,
)

NOT_RETRYABLE: Final = (
    InvalidInputError,
    MalformedRecordError,
    UnsupportedStoreError,
    AuditFailedError,
    JobFailedError,
    ArtefactsGoneError,
)
"""Errors that no retry changes."""
UPGRADING: Final = (JournalVersionError, RecordVersionError)
"""Of these, errors during an upgrade: another machine may have the newer version."""


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Fail the task without retries on an error that a retry cannot change; raise others unchanged.

    Every step is safe to repeat, so all other errors may be retried.

    Raises:
        AirflowFailException: Instead of an error in `NOT_RETRYABLE`, with its type and message.
    """
    try:
        yield
    except UPGRADING:
        raise
    except NOT_RETRYABLE as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error
