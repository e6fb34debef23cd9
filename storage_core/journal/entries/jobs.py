"""Entries about jobs: an index over what the stores say. The registry decides nothing about data.

What a job was submitted with goes by what is told of it: a new driver lets go what can be made again, and the
job's end ends its blobs, whoever tells it.

Source: commit protocol, "Job commit"; architecture, rule 5; Flink BLOB storage, "BLOB Lifecycle".
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.references import fail_job, finish_job
from lockgate.storage_core.journal.entries.rows import BlobJob, Destination, Job, Phase, TaskAttempt
from lockgate.storage_core.journal.entries.state import Key, State

TERMINAL = frozenset({"committed", "failed"})


class RecordJob(Op, frozen=True, tag="record-job"):
    """A job stands in its store so: set up, met again by a new driver, decided, or ended.

    A terminal phase is final: a message that comes late does not open the job again. Where the destination
    was emptied, and a job of the same id set up anew, the newer one stands, whatever is told of the older.

    Attributes:
        set_up_s: When `job.json` was created, by the clock of whoever did.
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

    def touches(self) -> Iterable[Key]:
        """Name the job and its destination."""
        return [(Job, (self.destination, self.job_id)), (Destination, (self.destination,))]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the job, or bring it to this phase; its blobs follow."""
        known = state.get(Job, self.destination, self.job_id)
        if known is not None and known.set_up_s > self.set_up_s:
            return
        if known is not None and known.set_up_s < self.set_up_s:
            _finish_blobs(state, moment, self.destination, self.job_id)
            known = None  # another job of the same id
        if known is not None and known.phase in TERMINAL and self.phase not in TERMINAL:
            return
        if self.phase in TERMINAL:
            _finish_blobs(state, moment, self.destination, self.job_id)
        elif known is not None and self._is_taken_over(known):
            for job in _blob_jobs(state, self.destination, self.job_id):
                fail_job(state, moment, job.job_id)
        ended_s = None
        if self.phase in TERMINAL:
            ended_s = known.ended_s if known is not None and known.ended_s is not None else moment.at_s
        state.put(
            Job(
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
            )
        )
        place = state.get(Destination, self.destination)
        first_s = moment.at_s if place is None else place.first_s
        state.put(Destination(url=self.destination, first_s=first_s, last_s=moment.at_s))

    def _is_taken_over(self, known: Job) -> bool:
        """Tell whether this is a new driver's, so that the one before it has failed."""
        return bool(self.job_attempt and known.job_attempt) and self.job_attempt != known.job_attempt


class RecordTask(Op, frozen=True, tag="record-task"):
    """A task attempt has committed: its pending set stands."""

    destination: str
    job_id: str
    task_id: str
    attempt_id: str
    job_attempt: str
    files: int
    rows: int | None
    size_bytes: int

    def touches(self) -> Iterable[Key]:
        """Name the attempt."""
        return [(TaskAttempt, (self.destination, self.job_id, self.task_id, self.attempt_id))]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the attempt; a second message changes nothing."""
        if state.get(TaskAttempt, self.destination, self.job_id, self.task_id, self.attempt_id) is None:
            state.put(TaskAttempt(**msgspec.structs.asdict(self), committed_s=moment.at_s))


class ForgetJob(Op, frozen=True, tag="forget-job"):
    """A job's folder is gone from its store: so is what the index says of it."""

    destination: str
    job_id: str

    def touches(self) -> Iterable[Key]:
        """Name the job."""
        return [(Job, (self.destination, self.job_id))]

    def fold(self, state: State, moment: Moment) -> None:
        """Remove the job and its attempts, and end its blobs."""
        _finish_blobs(state, moment, self.destination, self.job_id)
        for attempt in state.where(TaskAttempt, destination=self.destination, job_id=self.job_id):
            state.delete(attempt)
        job = state.get(Job, self.destination, self.job_id)
        if job is not None:
            state.delete(job)


def _finish_blobs(state: State, moment: Moment, destination: str, job_id: str) -> None:
    for job in _blob_jobs(state, destination, job_id):
        finish_job(state, moment, job)


def _blob_jobs(state: State, destination: str, job_id: str) -> list[BlobJob]:
    return state.where(BlobJob, destination=destination, commit_job=job_id)
