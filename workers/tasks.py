"""The Celery tasks: one effect each, scalar arguments, safe to run again, also concurrently.

Their messages and results carry the session token. A worker applies the token of the message before it runs
the task, and adds its own token to the result, so neither side reads a state older than the other has seen.
An error carries no token.

During an upgrade workers of two versions share the queues. A worker that does not know a message's
arguments, or the journal, refuses the message with an error that its sender knows:
`lockgate.workers.gather` sends it again, to another worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from celery import Task

from lockgate.storage_core.commit.publish.shard_completion import complete_shard_of
from lockgate.storage_core.commit.recovery.recover import recover_job as recover
from lockgate.storage_core.errors import JournalVersionError, MessageVersionError, StoreUnavailableError
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import load_settings
from lockgate.workers.celery_app import app
from lockgate.workers.session_token import extract, tokens
from lockgate.workers.task_commit import commit_staged_task

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


OPTIONS: Final[dict[str, Any]] = {
    "base": SessionTask,
    # The only error that is known to have had no effect and may be temporary.
    "autoretry_for": (StoreUnavailableError,),
    "retry_backoff": True,
    "retry_backoff_max": 60,
    "max_retries": 6,
}


def complete_plan_shard(destination: str, job_id: str, plan: str, shard: int) -> dict[str, Any]:
    """Make the files of one shard of a decided plan visible, and return the shard's report."""
    return _built_in(complete_shard_of(destination, JobId(job_id), plan, shard, load_settings()))


def recover_one_job(destination: str, job_id: str, dry_run: bool = False) -> dict[str, Any]:
    """Recover a job whose driver is gone, by the protocol's recovery table."""
    return _built_in(recover(destination, JobId(job_id), settings=load_settings(), dry_run=dry_run))


def sweep_unreferenced_blobs(dry_run: bool = True, orphans: bool | None = None) -> dict[str, Any]:
    """Delete unreferenced blobs, at the blob server of this worker's settings."""
    # A sender does not need the journal.
    from lockgate.storage_core.blobs.open_blobs import open_blobs

    with open_blobs(load_settings()) as blobs:
        return _built_in(blobs.sweep(dry_run=dry_run, orphans=orphans))


def _built_in(record: msgspec.Struct) -> dict[str, Any]:
    built_in = msgspec.to_builtins(record)
    return dict(built_in)


commit_task = app.task(commit_staged_task, name="lockgate.commit_task", **OPTIONS)
complete_shard = app.task(complete_plan_shard, name="lockgate.complete_shard", **OPTIONS)
recover_job = app.task(recover_one_job, name="lockgate.recover_job", **OPTIONS)
sweep_blobs = app.task(sweep_unreferenced_blobs, name="lockgate.sweep_blobs", **OPTIONS)
