"""Tasks whose messages and results carry the session token.

A worker reads the token of the message before it runs the task, and adds its own token to the result: neither
side then reads a state older than the other has seen. A result that is an error carries no token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Task

from lockgate.workers.session.token import extract, tokens


class SessionTask(Task):  # type: ignore[misc]
    """A task that returns a row. Every sender sets the token's header, and so does every retry."""

    def apply_async(self, *args: Any, headers: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Send the task, with this process's token among its headers."""
        return super().apply_async(*args, headers={**(headers or {}), **tokens()}, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; a worker reads the sender's token first, and adds its own to the row."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        extract(self.request.headers or {})
        # Not by Celery's own __call__, which begins a request of its own and so forgets the tries.
        return {**self.run(*args, **kwargs), **tokens()}
