"""Lockgate's workers as of a later release: `celery -A tests.support.workers.newer_version worker`.

Its `lockgate.commit_task` takes one argument more than this tree's.
"""

from __future__ import annotations

from typing import Any

from lockgate.workers import app
from lockgate.workers.task_commit import commit_staged_task
from lockgate.workers.tasks import OPTIONS

__all__ = ["app", "commit_task"]

app.finalize()
app.tasks.unregister("lockgate.commit_task")


@app.task(name="lockgate.commit_task", **OPTIONS)
def commit_task(
    destination: str, job_id: str, job_attempt: str, task_id: str, *, checksum: str | None = None
) -> dict[str, Any]:
    """Commit a task; a later release passes a checksum, and adds it to the row."""
    return {**commit_staged_task(destination, job_id, job_attempt, task_id), "checksum": checksum}
