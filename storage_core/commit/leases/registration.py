"""Register jobs and tasks in the journal's index of jobs.

The registry decides nothing, so its errors fail no job; `lockgate jobs rescan` adds missing entries.
Registering twice has no further effect: request ids are derived from the job, its attempt and the phase.
"""

from __future__ import annotations

import hashlib
import logging
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.leases.job_lease import is_journal_of, own_journal
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.pending_set import PendingSet
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.commit.records.shards import total_rows
from lockgate.storage_core.commit.registry.entries import (
    AT_ONCE,
    ForgetJob,
    RecordJob,
    RecordTask,
    TakeArtefacts,
)
from lockgate.storage_core.commit.registry.rows import (
    UNDELETED_FILES,
    UPLOADS_LEFT,
    Job,
    Phase,
    TaskAttempt,
)
from lockgate.storage_core.errors import ArtefactsGoneError, FencedError, LockgateError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import job_resource
from lockgate.storage_core.journal import Journal, Mutation, Refused, WriteOutcome
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import DropLease, FreeLease, Lease
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.open_store import canonical_url
from lockgate.storage_core.stores.protocol import in_pages

LOG: Final = logging.getLogger("lockgate.registry")
REASON: Final = 200
"""Characters of a reason that lists show; the job's records have all of it."""

PHASES: Final[Mapping[JobPhase, Phase]] = {
    JobPhase.OPEN: "open",
    JobPhase.DECIDED: "committing",
    JobPhase.PUBLISHED: "committing",
    JobPhase.REVERTING: "committing",
    JobPhase.ABORTING: "aborting",
    JobPhase.QUARANTINED: "failed",
    JobPhase.COMMITTED: "committed",
    JobPhase.FAILED: "failed",
}
"""Phase in the registry for each phase of a job."""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What lists of jobs show of a job beside its record and phase.

    Attributes:
        decision: Its decision.
        ended: Its terminal marker.
        tasks: Number of tasks that it publishes.
        rest: What the ended job could not delete; see `rest_of`.
    """

    decision: Decision | None = None
    ended: Ended | None = None
    tasks: int | None = None
    rest: str | None = None


def rest_of(phase: JobPhase, counts: Mapping[str, int]) -> str | None:
    """Return what an ended job could not delete, as the registry names it; None if nothing.

    Args:
        phase: Its phase.
        counts: Number of its files by result.
    """
    if phase is JobPhase.FAILED and counts.get("left"):
        return UPLOADS_LEFT
    return UNDELETED_FILES if phase is JobPhase.COMMITTED and counts.get("undeleted") else None


def register_job(
    folder: JobFolder,
    job: JobRecord,
    phase: JobPhase,
    *,
    settings: Settings,
    clock: Clock,
    facts: JobFacts | None = None,
) -> None:
    """Write a job's phase to this process's journal; in a terminal phase, also free the job's lease."""

    def mutations(journal: Journal) -> list[Mutation]:
        recorded = [job_mutation(folder, job, phase, facts=facts)]
        return recorded + end_of_lease(journal, folder) if phase in TERMINAL else recorded

    _register(folder, mutations, settings, clock)


def register_task(
    folder: JobFolder, job: JobRecord, committed: PendingSet, *, settings: Settings, clock: Clock
) -> None:
    """Write a task commit to the job's journal, if it is this process's journal."""

    def mutations(journal: Journal) -> list[Mutation]:
        return [_task_mutation(folder, job, committed)] if is_journal_of(journal, job) else []

    _register(folder, mutations, settings, clock)


def record_job(
    folder: JobFolder,
    job: JobRecord,
    phase: JobPhase,
    job_attempt: str = "",
    facts: JobFacts | None = None,
) -> RecordJob:
    """Return the registry entry of a job.

    Args:
        folder: Folder of the job.
        job: Record of the job.
        phase: Phase of the job.
        job_attempt: Newest job attempt; empty to keep the registered one.
        facts: What else is known; what is not known is kept as it is registered.
    """
    known, origin = facts or JobFacts(), job.origin or None
    receipt = None if known.ended is None else known.ended.receipt
    reasons = (found.reason for found in (known.ended, known.decision) if found is not None and found.reason)
    return RecordJob(
        destination=canonical_url(folder.store),
        job_id=job.job_id,
        name=job.name,
        short_id=job.short_id,
        committer=job.spec.committer,
        mode=job.spec.mode,
        phase=PHASES[phase],
        job_attempt=job_attempt,
        set_up_s=job.created_s,
        ended_s=None if known.ended is None else known.ended.ended_s,
        decided_s=None if known.decision is None else known.decision.decided_s,
        tasks=known.tasks,
        files=None if receipt is None else receipt.files,
        rows=None if receipt is None else receipt.rows,
        size_bytes=None if receipt is None else receipt.size,
        dag_id=origin and origin.dag_id,
        run_id=origin and origin.run_id,
        task_id=origin and origin.task_id,
        map_index=origin and origin.map_index,
        attention="quarantined" if phase is JobPhase.QUARANTINED else known.rest,
        reason=next(reasons, "")[:REASON] or None,
    )


def job_mutation(
    folder: JobFolder,
    job: JobRecord,
    phase: JobPhase,
    job_attempt: str = "",
    facts: JobFacts | None = None,
) -> Mutation:
    """Return `record_job` as an idempotent mutation with the same request id in every process.

    A driver, which passes its job attempt, writes `releases` before it.
    """
    entry = record_job(folder, job, phase, job_attempt, facts)
    # A job that needed attention is written again when it needs none.
    what = f"{entry.phase}/{entry.attention}" if entry.attention else entry.phase
    return _once(entry, folder, job, job_attempt, what)


def submission(folder: JobFolder, job: JobRecord, job_attempt: str) -> list[Mutation]:
    """Return the mutations that assign its artefacts to a job, to be written right after `job_mutation`.

    Each may have a transaction of its own. If the driver dies between two, the job's end releases what it has
    taken; another driver takes all of them again.

    Every driver submits once, because the failure of an earlier driver may have released artefacts.
    """
    artefacts = job.spec.artefacts
    if artefacts is None:
        return []
    pages = list(in_pages(artefacts.blob_keys, AT_ONCE)) or [()]
    entries = [
        TakeArtefacts(
            destination=canonical_url(folder.store), job_id=job.job_id, owner=artefacts.job_id, keys=page
        )
        for page in pages
    ]
    return [
        _once(entry, folder, job, job_attempt, f"artefacts/{number}" if number else "artefacts")
        for number, entry in enumerate(entries)
    ]


def releases(journal: Journal, record: RecordJob) -> list[Mutation]:
    """Return mutations that release what a driver leaves that a record replaces, to be written before it.

    They and the record are to be written `under` the new driver's lease: after another driver took it, they
    would release what that one has taken. Each has a transaction of its own. What a crash leaves out is
    released with the job's end.
    """
    with journal.reading() as reading:
        known = reading.get(Job, record.destination, record.job_id)
        if known is None or not record.takes_over(known):
            return []
        resource = job_resource(record.destination, record.job_id)
        names = [family.release for family in known_families() if family.release]
        return [Mutation(op=op) for name in names for op in pkgutil.resolve_name(name)(reading, resource)]


def under(mutation: Mutation, stamp: Stamp) -> Mutation:
    """Return a driver's mutation that is refused once the lease that it took with a stamp is lost."""
    return msgspec.structs.replace(mutation, op=msgspec.structs.replace(mutation.op, stamp=stamp))


def refuse_unsubmitted(
    folder: JobFolder, job: JobRecord, submitted: Sequence[WriteOutcome], *, page: int = 0
) -> None:
    """Refuse an undecided job whose artefacts could not be assigned.

    Args:
        folder: Folder of the job.
        job: Record of the job.
        submitted: Outcome of the page.
        page: Number of the page, from 0; the pages before it were assigned.

    Raises:
        ArtefactsGoneError: The artefacts are gone; the job's registry entry was written.
    """
    for outcome in submitted:
        if isinstance(outcome, Refused) and folder.decision() is None:
            got, reason = "did not get its artefacts", str(outcome.error)
            if page and job.spec.artefacts is not None:
                count = len(job.spec.artefacts.blob_keys)
                got = f"got only {page * AT_ONCE:,} of its {count:,} artefacts, released when it is aborted"
                reason = reason.partition("; ")[0]  # the rest says of this page that nothing was changed
            raise ArtefactsGoneError(
                f"job {folder.job_id} at {folder.store.url} {got} ({reason}); it "
                "can only be aborted; upload them again and set up a job with what the upload returns"
            )


def end_of_lease(journal: Journal, folder: JobFolder) -> list[Mutation]:
    """Return mutations that free and drop the lease of an ended job, independent of its holder."""
    resource = job_resource(canonical_url(folder.store), folder.job_id)
    with journal.reading() as reading:
        lease = reading.get(Lease, resource)
    if lease is None:
        return []
    return [
        Mutation(op=FreeLease(resource=resource, stamp=lease.stamp)),
        Mutation(op=DropLease(resource=resource)),
    ]


def forget_attempts(journal: Journal, forgotten: ForgetJob) -> None:
    """Delete the task attempts of a job to forget, a page in each transaction.

    Other writers need not wait for those of many jobs. The job stays after a crash, and is forgotten by the
    next rescan.
    """
    of_job = {"destination": forgotten.destination, "job_id": forgotten.job_id}
    with journal.reading() as reading:
        attempts = [(row.task_id, row.attempt_id) for row in reading.where(TaskAttempt, of_job)]
    for page in in_pages(attempts, AT_ONCE):
        journal.apply(msgspec.structs.replace(forgotten, attempts=page))


def warn_unregistered(folder: JobFolder, error: LockgateError) -> None:
    """Log that a job or task could not be registered."""
    LOG.warning(
        "job %s at %s: the journal's index of jobs was not updated (%s); the job is not affected; "
        "run `lockgate jobs rescan %s` to update it",
        folder.job_id,
        folder.store.url,
        error,
        folder.store.url,
    )


def _register(
    folder: JobFolder, mutations: Callable[[Journal], Sequence[Mutation]], settings: Settings, clock: Clock
) -> None:
    try:
        with step("register"):
            journal = own_journal(settings, clock)
            wanted = mutations(journal) if journal is not None else ()
            outcomes = journal.write(wanted) if journal is not None and wanted else ()
    except LockgateError as error:
        warn_unregistered(folder, error)
        return
    for outcome in outcomes:
        # Fenced: another driver took the ended job's lease at the same moment, and will release it.
        if isinstance(outcome, Refused) and not isinstance(outcome.error, FencedError):
            warn_unregistered(folder, outcome.error)


def _task_mutation(folder: JobFolder, job: JobRecord, committed: PendingSet) -> Mutation:
    entry = RecordTask(
        destination=canonical_url(folder.store),
        job_id=job.job_id,
        task_id=committed.task_id,
        attempt_id=committed.attempt_id,
        job_attempt=committed.job_attempt,
        files=len(committed.files),
        rows=total_rows(file.rows for file in committed.files),
        size_bytes=sum(file.upload.size for file in committed.files),
    )
    return _once(entry, folder, job, committed.job_attempt, f"{committed.task_id}/{committed.attempt_id}")


def _once(entry: Op, folder: JobFolder, job: JobRecord, job_attempt: str, what: str) -> Mutation:
    # The token distinguishes the job from one with the same id from before the destination was emptied.
    parts = "\n".join((canonical_url(folder.store), job.job_id, job.token, job_attempt, what))
    return Mutation(op=entry, request_id=hashlib.sha256(parts.encode()).hexdigest())
