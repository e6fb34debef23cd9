"""One job: all that is known about it, by its records in the store and by the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Query
from pydantic import AliasChoices, Field

from lockgate.plugins.web.access import HostOfRequest, Stopped
from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.job_state import JobState
from lockgate.plugins.web.api.job_steps import Step, steps
from lockgate.plugins.web.api.job_summary import Possible, actions, needs, summary
from lockgate.plugins.web.api.jobs import JobRow, Origin, origin_of, with_users
from lockgate.plugins.web.request_reads import Reads, ReadsOfRequest
from lockgate.storage_core.commit.job_view import JobRecords, TaskCount, count_tasks, read_records
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.leases.registration import PHASES
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobOrigin, JobRecord
from lockgate.storage_core.commit.records.pending_set import AuditVerdict
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.registry import job_lists
from lockgate.storage_core.commit.registry import queries as registry
from lockgate.storage_core.commit.registry.rows import Job
from lockgate.storage_core.errors import (
    JournalUnavailableError,
    LockgateError,
    ObjectNotFoundError,
    StateLostError,
)
from lockgate.storage_core.ids import JobAttemptId, JobId, job_resource, split_job_id
from lockgate.storage_core.journal import LeaseState, Reading
from lockgate.storage_core.journal.entries.lease_entries import Lease, Standing, state_of
from lockgate.storage_core.stores import open_store

router = APIRouter(prefix="/jobs/{job_id}", tags=["job"])

DestinationOfJob = Annotated[
    str | None,
    Query(max_length=2_048, description="Destination of the job; may be left out if the id is unique."),
]


class FailedExpectation(Model):
    """An expectation that the rows do not meet."""

    expectation: str
    column: str | None
    text: str
    samples: tuple[str, ...] = ()


class AuditResult(Model):
    """The audit's verdict: on the data of the job's plan, else the newest one.

    Attributes:
        verdict: `passed` or `failed`; None without a verdict.
        suite: Name of the suite.
        failing: The failing expectations, each with sample values.
    """

    is_required: bool
    verdict: str | None
    decided_s: float | None
    suite: str = ""
    failing: tuple[FailedExpectation, ...] = ()


class PublishedJob(Model):
    """The receipt of a published job."""

    turn: int
    mode: str
    committer: str
    files: int
    rows: int | None
    size_bytes: int = Field(validation_alias=AliasChoices("size_bytes", "size"))
    removed_files: int
    published_s: float
    undeleted_files: int = 0
    tables_behind: str = ""


class JobDetail(Model):
    """All that is known about a job.

    Attributes:
        decided_by: User, host and process that decided it; empty before, or if it cannot be read.
        summary: Where the job stands and what follows, in one to three sentences.
        steps: The seven steps, in order.
        receipt: Summary of what was published; None before.
        counts: Files by result, from the report; None before the end.
        unknown: Records that could not be read, one sentence each.
    """

    row: JobRow
    summary: str
    description: str
    created_by: str
    decided_by: str = ""
    job_attempt: str | None
    journal: str
    steps: tuple[Step, ...]
    actions: tuple[Possible, ...]
    audit: AuditResult
    receipt: PublishedJob | None
    reason: str
    counts: dict[str, int] | None
    unknown: tuple[str, ...] = ()


class SeenLease(NamedTuple):
    """A job's lease, and when it ends if it is not renewed."""

    state: JobLeaseState | None
    until_s: float | None = None
    is_recovering: bool = False
    job_attempt: str = ""


class Registered(NamedTuple):
    """What the journal knows about a job, with the number of its committed tasks."""

    job: Job | None
    lease: Lease | None
    identity: str
    now_s: float
    committed: int = 0


class Stored(NamedTuple):
    """What the store knows about a job."""

    records: JobRecords
    tasks: TaskCount | None


def place_of(reads: Reads, job_id: str, destination: str | None) -> str:
    """Return the destination of a job, which may be left out if the registry has one job of this id.

    Raises:
        InvalidInputError: The job id or the destination is invalid.
        ObjectNotFoundError: The registry has no such job, or the destination is not known.
        ConflictError: Several destinations have such a job.
    """
    split_job_id(job_id)
    if destination:
        return reads.known(destination)
    return reads.journal(lambda reading: registry.find_job(reading, job_id)).destination


def folder_of(reads: Reads, job_id: str, place: str) -> JobFolder:
    """Return a job's folder, as it stands: reading it probes and repairs nothing."""
    return JobFolder(open_store(place, reads.settings), JobId(job_id))


@router.get("")
def job_detail(
    reads: ReadsOfRequest, host: HostOfRequest, job_id: str, destination: DestinationOfJob = None
) -> JobDetail:
    """Return all that is known about a job. What cannot be read is named in `unknown`.

    Raises:
        ObjectNotFoundError: Neither the store nor the registry knows the job, or the destination.
    """
    found = detail_of(reads, job_id, destination, host.stopped("recover"))
    [origin] = with_users(host, [found.row.origin])
    return found.model_copy(update={"row": found.row.model_copy(update={"origin": origin})})


def detail_of(
    reads: Reads, job_id: str, destination: str | None, stopped: Stopped | None = None
) -> JobDetail:
    """Return what `job_detail` returns, without the user who triggered its run."""
    place, unknown = place_of(reads, job_id, destination), list[str]()
    known = _registered(reads, job_id, place, unknown)
    stored: Stored | None = None
    try:
        stored = reads.store(place, lambda: _stored(reads, job_id, place, known))
    except ObjectNotFoundError:
        raise
    except LockgateError as error:
        if known.job is None:
            raise
        unknown.append(f"The store: {error}")
    lease = _lease(known, stored and stored.records, unknown)
    state = JobState(
        records=None if stored is None else stored.records,
        registered=known.job,
        lease=lease.state,
        lease_until_s=lease.until_s,
        is_recovering=lease.is_recovering,
        tasks=(stored and stored.tasks) or _registered_tasks(known),
        recovery_minutes=reads.settings.recovery_minutes,
        now_s=known.now_s,
        stopped=stopped,
    )
    records = state.records
    if records is not None:
        unknown += records.unread
    record = records and records.record
    return JobDetail(
        row=_row(state, job_id, place),
        summary=summary(state),
        description=record.description if record else "",
        created_by=record.created_by if record else "",
        decided_by=records.decision.decided_by if records and records.decision else "",
        job_attempt=lease.job_attempt or (known.job.job_attempt if known.job else "") or None,
        journal=record.journal.partition("@")[2] if record else "",
        steps=steps(state),
        actions=actions(state),
        audit=_audit(records),
        receipt=_receipt(state),
        reason=state.reason,
        counts=dict(records.report.counts) if records and records.report else None,
        unknown=tuple(unknown),
    )


def _receipt(state: JobState) -> PublishedJob | None:
    """Return the receipt, with the number of replaced files that are not deleted by now."""
    if state.receipt is None:
        return None
    return PublishedJob.model_validate(
        msgspec.structs.replace(state.receipt, undeleted_files=state.left("undeleted"))
    )


def _registered_tasks(known: Registered) -> TaskCount | None:
    """Return the tasks that a decided job publishes, or that have committed; both outlive the clean-up."""
    job = known.job
    if job is not None and job.tasks is not None and job.phase in {"committing", "committed"}:
        return TaskCount(committed=job.tasks, expected=job.tasks)
    return TaskCount(committed=known.committed, expected=None) if known.committed else None


def _registered(reads: Reads, job_id: str, place: str, unknown: list[str]) -> Registered:
    def query(reading: Reading) -> Registered:
        job = reading.get(Job, place, job_id)
        return Registered(
            job,
            reading.get(Lease, job_resource(place, job_id)),
            reading.status().identity,
            reading.now_s(),
            0 if job is None else job_lists.committed_tasks(reading, [job])[job.key],
        )

    if reads.has_journal:
        try:
            return reads.journal(query)
        except (JournalUnavailableError, StateLostError) as error:
            unknown.append(f"The journal: {error}")
    return Registered(None, None, "", reads.clock.now_s())


def _stored(reads: Reads, job_id: str, place: str, known: Registered) -> Stored:
    folder = folder_of(reads, job_id, place)
    records = read_records(folder)
    is_empty = records.is_partly_deleted and not any(
        (records.decision, records.report, records.audit, records.unread)
    )
    if is_empty and known.job is None and not any(folder.store.pages(folder.prefix, page_size=1)):
        raise ObjectNotFoundError(
            f"there is no job {job_id} at {place}; nothing was read; check the spelling"
        )
    tasks = None
    if records.phase is JobPhase.OPEN and not records.is_partly_deleted:
        attempt = known.job.job_attempt if known.job else records.lease.job_attempt if records.lease else ""
        try:
            tasks = count_tasks(folder, JobAttemptId(attempt) if attempt else None)
        except LockgateError as error:
            return Stored(msgspec.structs.replace(records, unread=(*records.unread, str(error))), None)
    return Stored(records, tasks)


def _lease(known: Registered, records: JobRecords | None, unknown: list[str]) -> SeenLease:
    if records is None:
        return SeenLease(None) if known.lease is None else _of_journal(known.lease, known.now_s)
    if records.phase in TERMINAL:
        return SeenLease(None if records.lease is None else JobLeaseState.LAPSED)
    record, lease = records.record, records.lease
    if record is not None and record.journal:
        if record.journal.partition("@")[0] == known.identity:
            return (
                SeenLease(JobLeaseState.UNKNOWN)
                if known.lease is None
                else _of_journal(known.lease, known.now_s)
            )
        unknown.append(
            f"The job's lease: it is in journal {record.journal.partition('@')[2]}, which is not read here."
        )
    elif lease is not None and lease.state != "journal":
        state = _by_deadline(
            lease.state == "suspended", lease.deadline_s, lease.deadline_s - lease.renewed_s, known.now_s
        )
        return SeenLease(state, lease.deadline_s, job_attempt=lease.job_attempt)
    return SeenLease(JobLeaseState.UNKNOWN)


def _of_journal(lease: Lease, now_s: float) -> SeenLease:
    state = state_of(lease, now_s)
    if state is LeaseState.FREE:
        return SeenLease(JobLeaseState.LAPSED, job_attempt=lease.detail)
    is_suspended = lease.standing is Standing.SUSPENDED
    until_s = (lease.suspended_until_s or 0.0) if is_suspended else lease.renewed_s + lease.hard_s
    return SeenLease(
        _by_deadline(is_suspended, until_s, lease.hard_s, now_s),
        until_s,
        state is LeaseState.RECOVERING,
        lease.detail,
    )


def _by_deadline(is_suspended: bool, until_s: float, limit_s: float, now_s: float) -> JobLeaseState:
    """Return the state by the clock; recovery, which must be certain, watches the lease as well."""
    if now_s < until_s:
        return JobLeaseState.SUSPENDED if is_suspended else JobLeaseState.LIVE
    is_watched = not is_suspended and now_s < until_s + limit_s
    return JobLeaseState.OVERDUE if is_watched else JobLeaseState.LAPSED


def _row(state: JobState, job_id: str, place: str) -> JobRow:
    records, known = state.records, state.registered
    record = None if records is None else records.record
    name, _ = split_job_id(job_id)
    need, why = needs(state)
    plan, receipt = records and records.plan, state.receipt
    ended_s, decided_s, created_s = state.ended_s, state.decided_s, state.created_s or 0.0
    changed_s = known.changed_s if known else None
    changes = (created_s, decided_s, state.published_s, ended_s, changed_s)
    return JobRow(
        job_id=job_id,
        destination=place,
        name=name,
        phase=_phase(state),
        needs=need,
        needs_why=why,
        reason=state.reason,
        lease=state.lease,
        mode=record.spec.mode if record else known.mode if known else "",
        committer=record.spec.committer if record else known.committer if known else "",
        origin=_origin(record, known),
        tasks_committed=state.tasks.committed if state.tasks else 0,
        tasks_expected=state.tasks.expected if state.tasks else None,
        files=receipt.files if receipt else plan.files if plan else None,
        rows=receipt.rows if receipt else plan.rows if plan else None,
        size_bytes=receipt.size if receipt else plan.size if plan else None,
        created_s=created_s,
        changed_s=max(each or 0.0 for each in changes),
        ended_s=ended_s,
        commit_s=ended_s - decided_s if ended_s is not None and decided_s is not None else None,
    )


def _origin(record: JobRecord | None, known: Job | None) -> Origin | None:
    found = None if known is None else origin_of(known)
    if found is None and record is not None and isinstance(record.origin, JobOrigin):
        return Origin.model_validate(record.origin)
    return found


def _phase(state: JobState) -> str:
    """Return the phase in the words of the registry, so that list and job agree."""
    if state.phase is not None:
        return PHASES[state.phase]
    return state.registered.phase if state.registered else "unreadable"


def _audit(records: JobRecords | None) -> AuditResult:
    is_required = bool(records and records.record and records.record.spec.audit)
    audit = records and records.audit
    if not audit:
        return AuditResult(is_required=is_required, verdict=None, decided_s=None)
    return AuditResult(
        is_required=is_required,
        verdict="passed" if audit.passed else "failed",
        decided_s=audit.decided_s,
        suite=audit.suite,
        failing=tuple(_failing(audit)),
    )


def _failing(audit: AuditVerdict) -> Iterator[FailedExpectation]:
    """Yield the failing expectations; verdicts of earlier versions have only a line for each."""
    for number in count(1):
        line = audit.summary.get(f"failure_{number}")
        if line is None:
            return
        try:
            known = json.loads(str(audit.summary.get(f"failing_{number}") or "{}"))
            yield FailedExpectation(
                expectation=known["expectation"],
                column=known["column"],
                text=known["found"] or str(line),
                samples=tuple(known["samples"]),
            )
        except (ValueError, KeyError, TypeError):  # pydantic's errors are ValueErrors
            yield FailedExpectation(expectation=str(line).partition("(")[0], column=None, text=str(line))
