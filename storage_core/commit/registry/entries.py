"""Entries about jobs, and their family `jobs`. The registry is an index over the stores, and decides nothing.

The entries announce events; the blobs of a job follow it because their family reacts to these.

Source: commit protocol, "Job commit"; architecture, rule 5; Flink BLOB storage, "BLOB Lifecycle".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from lockgate.storage_core.commit.registry.day_totals import days_touched, recount
from lockgate.storage_core.commit.registry.rows import Destination, Job, JobDay, Phase, TaskAttempt
from lockgate.storage_core.errors import FencedError
from lockgate.storage_core.ids import job_of_resource, job_resource
from lockgate.storage_core.journal.entries.family import Family, Reaction, announce
from lockgate.storage_core.journal.entries.lease_entries import Lease, held
from lockgate.storage_core.journal.entries.op import (
    ArtefactsTaken,
    Event,
    Moment,
    Op,
    ResourceEnded,
    ResourceUsed,
)
from lockgate.storage_core.journal.entries.state import Key, State
from lockgate.storage_core.stamp import Stamp

TERMINAL = frozenset({"committed", "failed"})
KEPT: Final = (
    "reason",
    "decided_s",
    "tasks",
    "files",
    "rows",
    "size_bytes",
    "dag_id",
    "run_id",
    "task_id",
    "map_index",
)
"""Fields of a job that an entry leaves unchanged if it has None."""

AT_ONCE: Final = 1_000
"""Artefacts in one entry, so that other writers need not wait for all artefacts of a job."""


class RecordJob(Op, frozen=True, tag="record-job"):
    """Record the phase of a job: set up, taken over by a new driver, decided, or ended.

    A terminal phase is final: a late message does not open the job again. If the destination was emptied and
    a job of the same id was set up again, messages about the older one are ignored.

    Attributes:
        set_up_s: When `job.json` was created, by its creator's clock.
        stamp: Stamp of the lease of the driver that sent this; refused once the lease is lost. None: any
            process may send it.
        ended_s: When the terminal marker was written, by its writer's clock; None: now. For this and the
            fields of `KEPT`, see `Job`.
    """

    destination: str
    job_id: str
    name: str
    short_id: str
    committer: str
    mode: str
    phase: Phase
    job_attempt: str
    set_up_s: float
    stamp: Stamp | None = None
    ended_s: float | None = None
    decided_s: float | None = None
    tasks: int | None = None
    files: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    attention: str | None = None
    reason: str | None = None

    def touches(self) -> Iterable[Key]:
        """Return the job, its destination and day, and the lease that is compared."""
        rows: list[Key] = [(Job, (self.destination, self.job_id)), (Destination, (self.destination,))]
        if self.phase == "committed":
            rows += days_touched(self.destination, self.ended_s)
        return rows if self.stamp is None else [*rows, (Lease, (self._resource,))]

    def announces(self) -> Iterable[Event]:
        """Return the events that the fold may announce: a job set up again ends the older one of its id."""
        return [ResourceEnded(resource=self._resource)]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert or update the job with the totals of its day, and announce its end.

        Raises:
            FencedError: The driver has lost the job's lease.
        """
        if self.stamp is not None:
            held(state, self._resource, self.stamp)
        known = before = state.get(Job, self.destination, self.job_id)
        if known is not None and known.set_up_s > self.set_up_s:
            return
        if known is not None and known.set_up_s < self.set_up_s:
            announce(state, moment, ResourceEnded(resource=self._resource))
            known = None  # an older job of the same id
        if known is not None and known.phase in TERMINAL and self.phase not in TERMINAL:
            return
        if self.phase in TERMINAL:
            announce(state, moment, ResourceEnded(resource=self._resource))
        ended_s = None
        if self.phase in TERMINAL:
            ended_s = moment.at_s if self.ended_s is None else self.ended_s
            ended_s = known.ended_s if known is not None and known.ended_s is not None else ended_s
        job = Job(
            destination=self.destination,
            job_id=self.job_id,
            name=self.name,
            short_id=self.short_id,
            committer=self.committer,
            mode=self.mode,
            phase=self.phase,
            job_attempt=self.job_attempt or (known.job_attempt if known is not None else ""),
            set_up_s=self.set_up_s,
            changed_s=moment.at_s,
            ended_s=ended_s,
            attention=self.attention,
            **{name: self._latest(name, known) for name in KEPT},
        )
        state.put(job)
        recount(state, before, job)
        destination = state.get(Destination, self.destination)
        first_s = moment.at_s if destination is None else destination.first_s
        state.put(Destination(url=self.destination, first_s=first_s, last_s=moment.at_s))

    @property
    def _resource(self) -> str:
        return job_resource(self.destination, self.job_id)

    def _latest(self, name: str, known: Job | None) -> Any:
        value = getattr(self, name)
        return getattr(known, name) if value is None and known is not None else value

    def takes_over(self, known: Job) -> bool:
        """Return whether a new driver sent this, so that the previous one has failed."""
        if known.set_up_s != self.set_up_s or known.phase in TERMINAL:
            return False
        return bool(self.job_attempt and known.job_attempt) and self.job_attempt != known.job_attempt


class RecordTask(Op, frozen=True, tag="record-task"):
    """Record that a task attempt has committed."""

    destination: str
    job_id: str
    task_id: str
    attempt_id: str
    job_attempt: str
    files: int
    rows: int | None
    size_bytes: int

    def touches(self) -> Iterable[Key]:
        """Return the attempt."""
        return [(TaskAttempt, (self.destination, self.job_id, self.task_id, self.attempt_id))]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the attempt unless it is known."""
        if state.get(TaskAttempt, self.destination, self.job_id, self.task_id, self.attempt_id) is None:
            state.put(TaskAttempt(**msgspec.structs.asdict(self), committed_s=moment.at_s))


class ForgetJob(Op, frozen=True, tag="forget-job"):
    """Delete a job whose folder was deleted from its store.

    Attributes:
        attempts: Task and attempt of at most `AT_ONCE` of its task attempts, so that other writers need not
            wait for all. Then only these are deleted. Empty: the job with all of them.
    """

    destination: str
    job_id: str
    attempts: tuple[tuple[str, str], ...] = ()

    def touches(self) -> Iterable[Key]:
        """Return the job, or the attempts."""
        if self.attempts:
            return [(TaskAttempt, (self.destination, self.job_id, *attempt)) for attempt in self.attempts]
        return [(Job, (self.destination, self.job_id))]

    def announces(self) -> Iterable[Event]:
        """Return the job's end."""
        if self.attempts:
            return []
        return [ResourceEnded(resource=job_resource(self.destination, self.job_id))]

    def fold(self, state: State, moment: Moment) -> None:
        """Announce the job's end, and delete it with its attempts; or delete some of these."""
        for task_id, attempt_id in self.attempts:
            attempt = state.get(TaskAttempt, self.destination, self.job_id, task_id, attempt_id)
            if attempt is not None:
                state.delete(attempt)
        if self.attempts:
            return
        announce(state, moment, ResourceEnded(resource=job_resource(self.destination, self.job_id)))
        for attempt in state.where(TaskAttempt, destination=self.destination, job_id=self.job_id):
            state.delete(attempt)
        job = state.get(Job, self.destination, self.job_id)
        if job is not None:
            state.delete(job)
            recount(state, job, None)


class TakeArtefacts(Op, frozen=True, tag="take-artefacts"):
    """Give uploaded artefacts to a job, until its end.

    Attributes:
        owner: Name under which they were uploaded.
        keys: Keys of at most `AT_ONCE` artefacts; the entry is refused if one is gone.
    """

    destination: str
    job_id: str
    owner: str
    keys: tuple[str, ...]

    def touches(self) -> Iterable[Key]:
        """Return the job."""
        return [(Job, (self.destination, self.job_id))]

    def announces(self) -> Iterable[Event]:
        """Return the event for the family that keeps artefacts."""
        return [self._taken]

    def fold(self, state: State, moment: Moment) -> None:
        """Announce the event. The rows belong to the family that keeps artefacts."""
        announce(state, moment, self._taken)

    @property
    def _taken(self) -> ArtefactsTaken:
        resource = job_resource(self.destination, self.job_id)
        return ArtefactsTaken(resource=resource, owner=self.owner, keys=self.keys)


def job_touched(event: Event) -> Iterable[Key]:
    """Return the key of an event's job."""
    job = job_of_resource(event.resource)
    return () if job is None else [(Job, job)]


def refuse_ended(state: State, moment: Moment, event: ResourceUsed) -> None:  # noqa: ARG001 - of all reactions
    """Raise if the event's job has ended: nothing would delete what is then bound to it.

    Raises:
        FencedError: The job has ended.
    """
    named = job_of_resource(event.resource)
    job = None if named is None else state.get(Job, *named)
    if job is not None and job.ended_s is not None:
        raise FencedError(f"job {job.job_id} at {job.destination} has ended: it takes no {event.what}")


JOBS: Final = Family(
    name="jobs",
    version=1,
    rows=(Destination, Job, JobDay, TaskAttempt),
    ops=(RecordJob, RecordTask, ForgetJob, TakeArtefacts),
    reactions=(Reaction(event=ResourceUsed, fold=refuse_ended, touches=job_touched),),
)
