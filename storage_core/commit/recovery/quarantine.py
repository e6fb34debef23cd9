"""Quarantine: set a job aside whose records cannot be read, so that others can commit at its destination.

The job's turn is passed first. From then on no process can publish the job, whatever its records say. Then
`COMMIT_STARTED` is replaced by a decision with the verdict `quarantined`, and its bytes are kept beside it.
All other records, uploads and objects stay. A repeated call continues where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.decide.turn import pass_turn
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.leases.heartbeat import HeartbeatLeases
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.leases.leases_by_job import LeasesByJob
from lockgate.storage_core.commit.records.codec import digest, encode
from lockgate.storage_core.commit.records.create_if_absent import claim, create
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord, process_name
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.recovery.recover import is_quarantined
from lockgate.storage_core.commit.setup.capabilities import with_probed_capabilities
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    MalformedRecordError,
    ObjectNotFoundError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId, new_token
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import open_store


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """What a quarantine did, or would do.

    Attributes:
        unreadable: Why records of the job cannot be used.
        turn: Turn that the job has, which is passed; None if it has none.
        kept: Keys of copies of replaced records.
        done: Whether the job is in quarantine.
    """

    destination: str
    job_id: JobId
    unreadable: tuple[str, ...]
    turn: int | None
    kept: tuple[str, ...]
    done: bool


def quarantine_job(
    destination: str,
    job_id: str,
    *,
    reason: str = "",
    dry_run: bool = True,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Quarantine:
    """Set a job aside whose job.json, decision or plan cannot be read.

    Its name is free for the next generation, its files are never published, and nothing of it is deleted
    until `Job.abort`.

    Args:
        destination: Destination of the job.
        job_id: Id of the job.
        reason: Reason, recorded with the decision.
        dry_run: Return what would be done, and change nothing.

    Raises:
        ObjectNotFoundError: There is no such job.
        ConflictError: The records can be read, or the job has published or ended, or its driver is alive;
            nothing was changed.
        MalformedRecordError: The destination's log cannot be read; nothing was changed.
        OutcomeUnknownError: It is not known whether a record was written; call again.
    """
    settings, clock = settings or load_settings(), clock or SystemClock()
    store = open_store(destination, settings)
    folder = JobFolder(store, JobId(job_id))
    with step("quarantine"):
        names = {info.key.removeprefix(folder.prefix) for page in store.pages(folder.prefix) for info in page}
        if not names:
            raise ObjectNotFoundError(f"no job {job_id} at {store.url}; nothing was changed")
        folder = JobFolder(with_probed_capabilities(store, settings, clock), folder.job_id)
        record, unreadable = _check_records(folder)
        found = Quarantine(
            destination=store.url,
            job_id=folder.job_id,
            unreadable=tuple(unreadable),
            turn=_open_turn(folder),
            kept=tuple(sorted(folder.key(name) for name in names if name.startswith("quarantine/"))),
            done=is_quarantined(folder),
        )
        if found.done:
            return found
        _refuse(folder, found, names)
        _refuse_live(folder, record, settings, clock)
        if dry_run:
            return found
        kept = _set_aside(folder, found.turn, reason, clock)
    if record is not None:
        _register(folder, record, settings, clock)
    return msgspec.structs.replace(found, kept=tuple(sorted({*found.kept, *kept})), done=True)


def _check_records(folder: JobFolder) -> tuple[JobRecord | None, list[str]]:
    """Return `job.json` if it can be read, and why records that a commit needs cannot be used."""
    record, faults = None, []
    try:
        record = folder.job()
    except (MalformedRecordError, ObjectNotFoundError) as error:
        faults.append(str(error))
    try:
        faults.extend(_plan_faults(folder))
    except (MalformedRecordError, ObjectNotFoundError) as error:
        faults.append(str(error))
    return record, faults


def _plan_faults(folder: JobFolder) -> Iterator[str]:
    decision = folder.decision()
    if decision is None or decision.verdict != "commit":
        return
    plan = read_plan(folder, decision.plan or "")
    if plan.head.turn != decision.turn:
        yield f"{folder.key('COMMIT_STARTED')}: field turn is {decision.turn}, its plan's {plan.head.turn}"
    for files in (plan.all_additions(), plan.all_removals()):
        for _ in files:
            pass


def _open_turn(folder: JobFolder) -> int | None:
    highest = DestinationLog(folder.store).highest()
    if highest is None or highest.outcome is not None or highest.claim.job_id != folder.job_id:
        return None
    return highest.number


def _refuse(folder: JobFolder, found: Quarantine, names: set[str]) -> None:
    where = f"job {folder.job_id} at {folder.store.url}"
    if not found.unreadable:
        raise ConflictError(
            f"{where}: all its records can be read, so it is not quarantined; nothing was changed; "
            f"`lockgate jobs recover {folder.store.url} {folder.job_id}` brings it to its end"
        )
    ended = sorted(names & {"COMMIT_SUCCESS", "COMMIT_FAIL"})
    if ended:
        raise ConflictError(f"{where} has ended ({ended[0]}): it blocks no other job; nothing was changed")
    for outcome in DestinationLog(folder.store).outcomes():
        if outcome.job_id == folder.job_id and outcome.verdict == "published":
            raise ConflictError(
                f"{where} was published in turn {outcome.turn}: its data are live and it blocks no job; "
                "nothing was changed; restore its record from a version or a backup of the store, then "
                "recover the job"
            )


def _refuse_live(folder: JobFolder, record: JobRecord | None, settings: Settings, clock: Clock) -> None:
    leases = HeartbeatLeases(settings, clock) if record is None else LeasesByJob(settings, clock)
    try:
        state = leases.look(folder, record).state
    except MalformedRecordError:
        return  # a lease that cannot be read is not renewed
    if state is JobLeaseState.LIVE:
        raise ConflictError(
            f"job {folder.job_id} at {folder.store.url}: its driver is alive; nothing was changed; stop it, "
            "wait until its lease has lapsed (LOCKGATE_LEASE_HARD_S), and try again"
        )


def _set_aside(folder: JobFolder, turn: int | None, reason: str, clock: Clock) -> list[str]:
    """Pass the turn, then replace the decision; return the keys of the copies."""
    store, key = folder.store, folder.key("COMMIT_STARTED")
    if turn is not None:
        outcome = pass_turn(store, turn, folder.job_id, clock, "its job was quarantined")
        if outcome.verdict == "published":
            raise ConflictError(
                f"job {folder.job_id} at {store.url} was published in turn {turn} meanwhile; nothing was "
                "changed"
            )
    decision = Decision(
        job_id=folder.job_id,
        verdict="quarantined",
        token=new_token(),
        stamp=Stamp(),
        decided_s=clock.now_s(),
        decided_by=process_name(),
        reason=reason[:2000],
    )
    try:
        version, data = store.head(key).version, store.get(key)
    except ObjectNotFoundError:
        claim(store, key, decision)
        return []
    copy = folder.key(f"quarantine/COMMIT_STARTED.{digest(data)[:16]}")
    with suppress(AlreadyExistsError):  # an earlier call has kept the same bytes
        create(store, copy, data)
    store.put(key, encode(decision), if_version=version if store.capabilities.conditional_put else None)
    return [copy]


def _register(folder: JobFolder, record: JobRecord, settings: Settings, clock: Clock) -> None:
    if record.journal and settings.has_journal:
        from lockgate.storage_core.commit.leases.registration import register_job  # noqa: PLC0415 - SQLAlchemy is slow

        register_job(folder, record, JobPhase.QUARANTINED, settings=settings, clock=clock)
