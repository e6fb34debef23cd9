"""Tasks whose messages and answers carry what their sender has seen of its journals.

A worker takes a message's token up before it runs the task, and its answer brings the worker's own token
back: neither reads a state older than what it was told of. An answer that is an error carries nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Task

from lockgate.workers.session.token import take_up, tokens


class CarryingTask(Task):  # type: ignore[misc]
    """A task that returns a row. Its header is set whoever sends it, and again when it is retried."""

    def apply_async(self, *args: Any, headers: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Send the task, with this process's token among its headers."""
        return super().apply_async(*args, headers={**(headers or {}), **tokens()}, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; a worker takes the sender's token up before, and adds its own to the row."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        take_up(self.request.headers or {})
        # Not by Celery's own __call__, which begins a request of its own and so forgets the tries.
        return {**self.run(*args, **kwargs), **tokens()}
