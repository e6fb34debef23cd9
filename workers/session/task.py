"""Tasks whose messages and results carry the session token.

A worker applies the token of the message before it runs the task, and adds its own token to the result, so
neither side reads a state older than the other has seen. An error carries no token.

During an upgrade workers of two versions share the queues. A worker that does not know a message's arguments,
or the journal, refuses the message with an error that its sender knows: `lockgate.workers.gather` sends it
again, to another worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery import Task

from lockgate.storage_core.errors import JournalVersionError, MessageVersionError
from lockgate.workers.session.token import extract, tokens

logger = logging.getLogger(__name__)


class SessionTask(Task):  # type: ignore[misc]
    """A task that returns a row. Every message has the token's header, also that of a retry."""

    def apply_async(self, *args: Any, headers: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Send the task, with this process's token in its headers."""
        return super().apply_async(*args, headers={**(headers or {}), **tokens()}, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; a worker applies the sender's token first and adds its own to the row."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        try:
            self.__header__(*args, **kwargs)
        except TypeError as error:
            raise MessageVersionError(
                f"task {self.name}: {error}; it was not begun; its sender has another version of Lockgate: "
                "upgrade the workers before their clients"
            ) from None
        try:
            extract(self.request.headers or {})
            # Not by Celery's __call__, which pushes a new request without the number of retries.
            return {**self.run(*args, **kwargs), **tokens()}
        except JournalVersionError as error:
            self._stop_consuming(error)
            raise

    def _stop_consuming(self, error: JournalVersionError) -> None:
        """Take no more messages of the queue: this worker would refuse each, faster than others work."""
        queue, worker = self.request.delivery_info["routing_key"], self.request.hostname
        logger.error("worker %s takes no more messages of queue %s; upgrade it: %s", worker, queue, error)
        self.app.control.cancel_consumer(queue, destination=[worker])
