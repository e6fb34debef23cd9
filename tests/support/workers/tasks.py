"""Tasks of tests, in a module that pytest does not collect.

pytest reads every name of a test module, and reading a task configures its app, which starts a broker.
"""

from __future__ import annotations

from typing import Any

from celery.exceptions import Reject

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings
from lockgate.workers.celery_app import app
from lockgate.workers.session_token import HEADER, tokens
from lockgate.workers.tasks import SessionTask
from tests.support.journal.observers import take

TRIES: list[str] = []
ANSWER: dict[str, Any] = {}


@app.task(name="test.received", base=SessionTask, bind=True)
def received(self: Any) -> dict[str, Any]:
    """Return the received header and the token of the process at the start of the task."""
    return {"header": (self.request.headers or {}).get(HEADER), "seen": tokens().get(HEADER), **ANSWER}


@app.task(name="test.stubborn", base=SessionTask, bind=True, autoretry_for=(OSError,), retry_backoff=False,
          default_retry_delay=0, max_retries=3)  # fmt: skip
def stubborn(self: Any, journal_writes: bool) -> dict[str, Any]:
    """Fail twice, then return the header of each attempt."""
    TRIES.append((self.request.headers or {}).get(HEADER, ""))
    if len(TRIES) < 3:
        if journal_writes:
            journal = configured_journal(load_settings())
            assert journal is not None
            take(journal)
        raise OSError("not yet")
    return {"tries": list(TRIES)}


@app.task(name="test.ended", bind=True, max_retries=1, default_retry_delay=0)
def ended(self: Any, how: str) -> None:
    """End in one of the ways in which a task can end."""
    if how == "retry" and self.request.retries == 0:
        raise self.retry()
    if how == "failure":
        raise InvalidInputError("who, which call, next step")
    if how == "rejected":
        raise Reject("given back", requeue=False)
