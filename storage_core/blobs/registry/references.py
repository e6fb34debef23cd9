"""Reference: a reason to keep a blob, held by an owner; and the entries about references.

Owners are jobs, receivers and viewers of a blob, logs and XCom rows.

A blob is staged when its last reference is dropped, not at the next sweep. So an unreferenced blob is kept
for one to two intervals, and a sweep need not search for unreferenced blobs.

Source: Flink BLOB storage, "BLOB Lifecycle", "Staged Cleanup".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Reference
from lockgate.storage_core.errors import ConflictError, FencedError, ObjectNotFoundError, SafeModeError
from lockgate.storage_core.ids import job_of_resource, job_resource
from lockgate.storage_core.journal.entries.family import announce
from lockgate.storage_core.journal.entries.lease_entries import Lease, held
from lockgate.storage_core.journal.entries.op import (
    ArtefactsTaken,
    Event,
    Moment,
    Op,
    ResourceEnded,
    ResourceUsed,
)
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix
from lockgate.storage_core.stamp import Stamp

if TYPE_CHECKING:
    from lockgate.storage_core.journal.read.snapshot_read import Reading

JOB_OWNER: Final = "job"
"""Owner of a job's references to the blobs that it was submitted with."""


class SubmitBlobJob(Op, frozen=True, tag="submit-blob-job"):
    """Submit a job: it keeps the blobs that were uploaded for it until it ends.

    Attributes:
        blob_keys: Keys of all its blobs; the entry is refused if one is gone.
        destination: Destination of its commit job, empty if it has none.
        commit_job: Id of the commit job.
    """

    job_id: str
    blob_keys: tuple[str, ...]
    destination: str = ""
    commit_job: str = ""

    def touches(self) -> Iterable[Key]:
        yield BlobJob, (self.job_id,)
        for blob_key in self.blob_keys:
            yield Blob, (self.job_id, blob_key)
            yield Reference, (self.job_id, blob_key, JOB_OWNER)

    def announces(self) -> Iterable[Event]:
        return [self._used] if self.commit_job else []

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the job and its reference to each blob; a second entry changes nothing."""
        refuse_ended(state, self.job_id)
        known = state.get(BlobJob, self.job_id)
        if self.commit_job:
            self._refuse_unfit_commit_job(state, moment, known)
        for blob_key in self.blob_keys:
            refer(state, moment, self.job_id, blob_key, owner=JOB_OWNER)
        destination, commit_job = self.destination, self.commit_job
        if known is not None and not commit_job:
            destination, commit_job = known.destination, known.commit_job
        state.put(
            BlobJob(
                job_id=self.job_id,
                destination=destination,
                commit_job=commit_job,
                submitted_s=moment.at_s if known is None else known.submitted_s,
            )
        )

    @property
    def _used(self) -> ResourceUsed:
        resource = job_resource(self.destination, self.commit_job)
        return ResourceUsed(resource=resource, what=f"blobs of {self.job_id}")

    def _refuse_unfit_commit_job(self, state: State, moment: Moment, known: BlobJob | None) -> None:
        """Raise if the commit job cannot take the blobs, because nothing would delete them."""
        owner = (self.destination, self.commit_job)
        if known is not None and known.commit_job and (known.destination, known.commit_job) != owner:
            raise ConflictError(
                f"the blobs of {self.job_id} belong to job {known.commit_job} at {known.destination}, and "
                "are deleted with it; nothing was changed; upload them again, for this job"
            )
        announce(state, moment, self._used)


class TakeReference(Op, frozen=True, tag="take-reference"):
    """Take an owner's reference to a blob. It has no effect if the owner has it already.

    Attributes:
        lapse_s: Time after which it lapses if the owner never uses it; None: it does not lapse.
    """

    job_id: str
    blob_key: str
    owner: str
    lapse_s: float | None = None

    def touches(self) -> Iterable[Key]:
        return [
            (Reference, (self.job_id, self.blob_key, self.owner)),
            (Blob, (self.job_id, self.blob_key)),
            (BlobJob, (self.job_id,)),
        ]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the reference, and unstage the blob."""
        refuse_ended(state, self.job_id)
        refer(state, moment, self.job_id, self.blob_key, owner=self.owner, lapse_s=self.lapse_s)


class DropReference(Op, frozen=True, tag="drop-reference"):
    """Drop an owner's reference to a blob, if it exists."""

    RESULT: ClassVar = bool

    job_id: str
    blob_key: str
    owner: str

    def touches(self) -> Iterable[Key]:
        return [
            (Reference, (self.job_id, self.blob_key, self.owner)),
            (Blob, (self.job_id, self.blob_key)),
        ]

    def spans(self) -> Iterable[Span]:
        return [prefix(Reference, self.job_id, self.blob_key)]

    def fold(self, state: State, moment: Moment) -> bool:
        """Delete the reference, and stage the blob after the last; return whether it is unreferenced."""
        reference = state.get(Reference, self.job_id, self.blob_key, self.owner)
        if reference is not None:
            state.delete(reference)
        blob = state.get(Blob, self.job_id, self.blob_key)
        if blob is None:
            return True
        if references_to(state, blob):
            return False
        if reference is not None:
            _stage(state, moment, blob)
        return not blob.upload_set


class LapseReference(DropReference, frozen=True, tag="lapse-reference"):
    """Drop a reference that has lapsed."""

    def fold(self, state: State, moment: Moment) -> bool:
        """Delete the reference if it has lapsed; return whether the blob is unreferenced then."""
        refuse_safe_mode(moment, f"reference of {self.owner} to blob {self.job_id}/{self.blob_key}")
        reference = state.get(Reference, self.job_id, self.blob_key, self.owner)
        if reference is None or reference.until_s is None or reference.until_s > moment.at_s:
            return False
        return super().fold(state, moment)


class FailBlobJob(Op, frozen=True, tag="fail-blob-job"):
    """Drop a failed job's references to recreatable blobs; recovery may need the others.

    Attributes:
        blob_keys: A page of its blobs, so that other writers need not wait for all of them.
        resource: Commit job whose earlier driver has failed; empty: the caller reports the failure.
        stamp: Stamp of the new driver's lease; refused once the lease is lost. None: nothing is compared.
    """

    RESULT: ClassVar = int

    job_id: str
    blob_keys: tuple[str, ...]
    resource: str = ""
    stamp: Stamp | None = None

    def touches(self) -> Iterable[Key]:
        blobs: list[Key] = [(Blob, (self.job_id, blob_key)) for blob_key in self.blob_keys]
        return blobs if self.stamp is None else [*blobs, (Lease, (self.resource,))]

    def spans(self) -> Iterable[Span]:
        return [prefix(Reference, self.job_id, blob_key) for blob_key in self.blob_keys]

    def fold(self, state: State, moment: Moment) -> int:
        """Drop the references; return their number.

        Raises:
            FencedError: The new driver has lost the job's lease.
        """
        if self.stamp is not None:
            held(state, self.resource, self.stamp)
        found = [state.where(Reference, job_id=self.job_id, blob_key=key) for key in self.blob_keys]
        return _release(state, moment, dict(zip(self.blob_keys, found, strict=True)), self.job_id)


class FinishBlobJob(Op, frozen=True, tag="finish-blob-job"):
    """Record a job's end: all its blobs become deletable, even with references."""

    job_id: str

    def touches(self) -> Iterable[Key]:
        return [(BlobJob, (self.job_id,))]

    def fold(self, state: State, moment: Moment) -> None:
        """Mark the job as final, even if it was not submitted."""
        known = state.get(BlobJob, self.job_id)
        if known is None:
            known = BlobJob(job_id=self.job_id, destination="", commit_job="", submitted_s=moment.at_s)
        finish_job(state, moment, known)


def artefacts_touched(event: ArtefactsTaken) -> Iterable[Key]:
    """Return the keys of the rows that `take_artefacts` reads."""
    op = _submission(event)
    return () if op is None else op.touches()


def take_artefacts(state: State, moment: Moment, event: ArtefactsTaken) -> None:
    """Give the blobs to the job."""
    op = _submission(event)
    if op is not None:
        op.fold(state, moment)


def submitted_with(event: Event) -> Iterable[Span]:
    """Return the span of the rows that `end_blobs` reads."""
    job = job_of_resource(event.resource)
    return [] if job is None else [(BlobJob, ("destination", "commit_job"), job)]


def end_blobs(state: State, moment: Moment, event: ResourceEnded) -> None:
    """Mark what was submitted with an ended job as final."""
    for job in _submitted_with(state, event):
        finish_job(state, moment, job)


def refer(
    state: State, moment: Moment, job_id: str, blob_key: str, *, owner: str, lapse_s: float | None = None
) -> None:
    """Insert a reference and unstage the blob.

    Raises:
        ObjectNotFoundError: The blob is deleted, or marked for deletion.
    """
    blob = state.get(Blob, job_id, blob_key)
    if blob is None or blob.deleting_s is not None:
        raise gone(job_id, blob_key)
    known = state.get(Reference, job_id, blob_key, owner)
    taken_s = moment.at_s if known is None else known.taken_s
    until_s = None if lapse_s is None else moment.at_s + lapse_s
    state.put(Reference(job_id=job_id, blob_key=blob_key, owner=owner, taken_s=taken_s, until_s=until_s))
    if blob.staged_s is not None:
        state.put(msgspec.structs.replace(blob, staged_s=None))


def gone(job_id: str, blob_key: str) -> ObjectNotFoundError:
    """Return the error for a blob that takes no reference."""
    return ObjectNotFoundError(
        f"blob {job_id}/{blob_key} is gone: nothing referred to it for longer than the retention "
        "interval; no reference to it was taken; upload it again"
    )


def _release(state: State, moment: Moment, of_blob: Mapping[str, Sequence[Reference]], job_id: str) -> int:
    dropped = 0
    for blob_key, references in of_blob.items():
        blob = state.get(Blob, job_id, blob_key)
        if blob is None or blob.guarantee != "recreatable":
            continue
        for reference in references:
            state.delete(reference)
        _stage(state, moment, blob)
        dropped += len(references)
    return dropped


def finish_job(state: State, moment: Moment, job: BlobJob) -> None:
    """Mark a job as final, once."""
    if job.final_s is None:
        state.put(msgspec.structs.replace(job, final_s=moment.at_s))


def references_to(state: State, blob: Blob) -> list[Reference]:
    """Return the references to a blob."""
    return state.where(Reference, job_id=blob.job_id, blob_key=blob.blob_key)


def is_ended(known: State | Reading, job_id: str) -> bool:
    """Return whether a job is final."""
    job = known.get(BlobJob, job_id)
    return job is not None and job.final_s is not None


def refuse_ended(known: State | Reading, job_id: str) -> None:
    """Raise if a job has ended.

    Raises:
        FencedError: It has ended.
    """
    if is_ended(known, job_id):
        raise FencedError(f"job {job_id} has ended: it takes no more blobs and no references; stop")


def refuse_safe_mode(moment: Moment, what: str) -> None:
    """Raise in safe mode.

    Raises:
        SafeModeError: The journal is in safe mode.
    """
    if moment.is_safe_mode:
        raise SafeModeError(f"{what}: the journal is in safe mode: nothing is reaped or deleted in it")


def _stage(state: State, moment: Moment, blob: Blob) -> None:
    """Stage a blob, unless its upload set keeps it."""
    if blob.staged_s is None and not blob.upload_set:
        state.put(msgspec.structs.replace(blob, staged_s=moment.at_s))


def _submission(event: ArtefactsTaken) -> SubmitBlobJob | None:
    job = job_of_resource(event.resource)
    if job is None:
        return None
    destination, commit_job = job
    return SubmitBlobJob(
        job_id=event.owner, blob_keys=event.keys, destination=destination, commit_job=commit_job
    )


def _submitted_with(state: State, event: Event) -> list[BlobJob]:
    job = job_of_resource(event.resource)
    if job is None:
        return []
    destination, commit_job = job
    return state.where(BlobJob, destination=destination, commit_job=commit_job)
