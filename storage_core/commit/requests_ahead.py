"""Requests of a job commit that are sent before their answers are needed.

At a store that is far away, a commit takes as long as its requests that wait for each other. A request that
orders processes, such as the claim of a turn or the decision, is never sent ahead: it waits for all that it
depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

from lockgate.storage_core.commit.decide.additions import Additions, check_uploads, store_additions
from lockgate.storage_core.commit.decide.audit import check_audit
from lockgate.storage_core.commit.decide.task_selection import Chosen, list_tasks
from lockgate.storage_core.commit.destination.log import DestinationLog, LogRead, Manifest
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import Outcome
from lockgate.storage_core.concurrency import Together
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId

T = TypeVar("T")


class RequestsAhead:
    """The requests of one commit that are under way, and their answers."""

    def __init__(self, context: CommitContext, job_attempt: JobAttemptId, together: Together) -> None:
        """Begin to read the job's records and the destination's log.

        Args:
            context: Context of the job.
            job_attempt: Job attempt whose tasks the commit includes.
            together: Sends the requests.
        """
        self._context = context
        self._together = together
        self._destination_log = DestinationLog(context.store, context.settings.near_calls)
        self._additions: Future[Additions] | None = None
        self.decision = self._send("load", context.folder.decision)
        self.record = self._send("load", context.folder.job)
        self.expected = self._send("load", partial(context.folder.expected, job_attempt))
        self.listed = self._send("load", partial(list_tasks, context.folder))
        self._log: Future[LogRead] | None = self._send("turn", self._destination_log.read)

    def check_audit(self, chosen: list[Chosen]) -> Future[str | None]:
        """Begin to check the audit verdict for the chosen attempts."""
        return self._send("load", partial(check_audit, self._context.folder, self._context.job, chosen))

    def store_additions(self, chosen: list[Chosen]) -> Future[Additions]:
        """Begin to store the lists of the added files, which do not depend on the turn."""
        context = self._context
        self._additions = self._together.start(
            partial(store_additions, context.folder, context.job, chosen, context.settings)
        )
        return self._additions

    def wait_for_additions(self) -> None:
        """Wait until no list is being written: an abort would not delete what is written after it."""
        if self._additions is not None:
            wait((self._additions,))

    def log(self) -> LogRead | None:
        """Return the destination's log at the first call, None later; begin to fold it."""
        seen = None if self._log is None else self._log.result()
        self._log = None
        self._manifest = self._together.start(
            partial(self._destination_log.fold, seen) if seen is not None else _nothing
        )
        return seen

    def manifest_before(self, turn: int) -> Manifest:
        """Return the live files after the turn before this one.

        They may be read before the turn is claimed: its claim shows that the turn before it had its outcome,
        and outcomes never change.
        """
        found = self._manifest.result()
        return found if found is not None and found.turn == turn - 1 else self._destination_log.manifest()

    def check_uploads(self, additions: Additions) -> Future[None]:
        """Begin to check that all uploads of the plan are open."""
        return self._send(
            "plan", partial(check_uploads, self._context.folder, additions, self._context.settings)
        )

    def job(self) -> Future[JobRecord]:
        """Begin to read `job.json`: gone if a sweep has deleted the job, or the destination was moved."""
        return self._send("decide", self._context.folder.job)

    def outcome(self, turn: int) -> Future[Outcome | None]:
        """Begin to read the outcome of a turn, which another job may have passed."""
        return self._send("turn", partial(self._destination_log.outcome, turn))

    def _send(self, name: str, call: Callable[[], T]) -> Future[T]:
        with step(name):
            return self._together.start(call)


def _nothing() -> None:
    """Return None: the log was read before."""
