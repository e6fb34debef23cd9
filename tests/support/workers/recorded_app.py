"""Lockgate's workers, with a record of their messages, for `celery -A`."""

from __future__ import annotations

from lockgate.workers import app
from tests.support.workers.message_records import record_messages, record_runs

__all__ = ["app"]

record_messages("lockgate")
record_runs("lockgate")
