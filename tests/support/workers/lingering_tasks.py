"""A long task of a user in Lockgate's application."""

from __future__ import annotations

from pathlib import Path

from lockgate.workers.celery_app import COMMIT_QUEUE, app
from tests.support.workers.neighbour import begin


@app.task(name="tests.linger", queue=COMMIT_QUEUE)
def linger(folder: str) -> None:
    """Note that it began, and run until there is a file `enough`."""
    begin(Path(folder), "lockgate")
