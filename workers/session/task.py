"""Tasks whose messages and results carry the session token.

A worker applies the token of the message before it runs the task, and adds its own token to the result, so
neither side reads a state older than the other has seen. An error carries no token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Task

from lockgate.workers.session.token import extract, tokens


class SessionTask(Task):  # type: ignore[misc]
    """A task that returns a row. Every message has the token's header, also that of a retry."""

    def apply_async(self, *args: Any, headers: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Send the task, with this process's token in its headers."""
        return super().apply_async(*args, headers={**(headers or {}), **tokens()}, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; a worker applies the sender's token first and adds its own to the row."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        extract(self.request.headers or {})
        # Not by Celery's __call__, which pushes a new request without the number of retries.
        return {**self.run(*args, **kwargs), **tokens()}
