"""Set up a job: create its identity if absent, without changing the destination's data.

Source: commit protocol, "Set-up" and "Identity".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, get_args

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.committers import get_committer
from lockgate.storage_core.commit.destination.conflict_mode import earlier_generations, refuse_if_occupied
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.schema_evolution import refuse_unfit_columns
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.generations import (
    EndedGeneration,
    Newest,
    is_over,
    record_end,
    recorded_end,
)
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import (
    MODES,
    JobOrigin,
    JobRecord,
    JobSpec,
    OnLapse,
    Rerun,
    ScopeName,
    ShortIdClaim,
    process_name,
)
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.concurrency import Together
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    UnsupportedStoreError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId, JobName, ShortId, job_id, new_token, short_id
from lockgate.storage_core.stores import Store

SHORT_ID_TRIES: Final = 16
SLOW_S: Final = 600.0
"""A set-up that took longer looks again whether its generation has ended and was deleted meanwhile."""
MAX_VALUE_CHARS: Final = 200
"""Characters of a value in an error message; a list of artefacts may be long."""


class FoundJob(NamedTuple):
    """A job that was set up or found.

    Attributes:
        record: Its `job.json`.
        phase: Its phase.
        ended: Its terminal marker, if its folder was deleted; it has committed.
    """

    record: JobRecord
    phase: JobPhase
    ended: Ended | None = None


def set_up(
    store: Store,
    name: JobName,
    newest: Callable[[], Newest],
    spec: JobSpec,
    *,
    description: str,
    clock: Clock,
    journal: str = "",
    origin: JobOrigin | None = None,
    at_once: int = 1,
    before_create: Callable[[], object] = lambda: None,
) -> FoundJob:
    """Find or create the job for a run of `name`.

    An unfinished generation is returned. After an ended one the next generation begins, except that with
    `rerun="once"` a committed generation is always returned.

    Args:
        store: Store of the destination, with probed capabilities.
        name: Name that is stable over the run's retries.
        newest: Returns its newest generation.
        spec: Specification of the job; must be the same in a retry.
        description: Description for people.
        clock: Clock for the time of creation.
        journal: Journal of the job's leases; empty for heartbeats in its folder.
        origin: The Airflow task that sets it up.
        at_once: Maximum number of records of the destination's log that are read at a time.
        before_create: Is called when it is known which generation comes next, before anything is written; an
            error of it is raised.

    Raises:
        InvalidInputError: The specification is invalid.
        ConflictError: The unfinished generation has another specification, the mode is `fail` and the
            destination has data, or the columns do not fit. Nothing was changed. Or this process was paused,
            and the job has ended and was deleted meanwhile.
    """
    check_spec(spec, store)
    log = DestinationLog(store, at_once)
    with step("setup"), Together(2) as together:
        fit = together.start(lambda: _refuse_unfit_columns(log, spec))
        generation, has_begun, seen_s = newest()
        before_create()
        before = None
        if has_begun:
            found = _unfinished_or_end(JobFolder(store, job_id(name, generation)), spec)
            if isinstance(found, FoundJob):
                return found
            before, generation = found, generation + 1
        elif spec.rerun == "once" and generation > 1:
            before = recorded_end(store, job_id(name, generation - 1))
        if spec.rerun == "once" and before is not None and before.job and before.phase is JobPhase.COMMITTED:
            return FoundJob(before.job, before.phase, before.ended)  # final, whatever this run specifies
        if spec.mode == "fail" and spec.scope == "destination":  # partitions are known only at the commit
            refuse_if_occupied(store, log.manifest(), earlier_generations(name, generation, spec))
        fit.result()
        record = JobRecord(
            job_id=job_id(name, generation),
            name=name,
            generation=generation,
            short_id=_claim_short_id(store, job_id(name, generation)),
            spec=spec,
            token=new_token(),
            created_s=clock.now_s(),
            created_by=process_name(),
            description=description,
            journal=journal,
            origin=origin or msgspec.UNSET,
        )
        folder = JobFolder(store, record.job_id)
        stored = _check_same_spec(claim(store, folder.key("job.json"), record), spec)
        waited_s = max(clock.now_s() - seen_s[0], clock.monotonic_s() - seen_s[1])
        if waited_s > SLOW_S and is_over(store, record.job_id):
            store.delete(folder.key("job.json"))
            raise ConflictError(
                f"job {record.job_id} at {store.url}: its set-up took {waited_s:.0f} s, and meanwhile the "
                "job has ended and its folder was deleted; nothing was published; run it again"
            )
        return FoundJob(stored, JobPhase.OPEN if stored.token == record.token else folder.phase())


def check_spec(spec: JobSpec, store: Store | None = None) -> None:
    """Refuse an invalid specification.

    Args:
        spec: Specification of the job.
        store: Store of the destination, if it is already open.

    Raises:
        InvalidInputError: A value is unknown, or options contradict each other.
        UnsupportedStoreError: The store does not support the committer or the file names.
    """
    _check_committer(spec, store)
    _check_names(spec, store)
    for field, value, known in (
        ("mode", spec.mode, MODES),
        ("scope", spec.scope, get_args(ScopeName)),
        ("on_lapse", spec.on_lapse, get_args(OnLapse)),
        ("rerun", spec.rerun, get_args(Rerun)),
    ):
        if value not in known:
            raise InvalidInputError(f"{field} {value!r} is not known; use one of {', '.join(known)}")
    if spec.mode == "compact" and not spec.unique_filenames:
        raise InvalidInputError(
            "mode compact needs unique file names, so that it never overwrites what it reads"
        )
    if spec.allow_irreversible and spec.unique_filenames:
        raise InvalidInputError(
            "allow_irreversible=True has no effect with unique file names, which never overwrite anything; "
            "leave it out, or add unique_filenames=False"
        )


def _check_committer(spec: JobSpec, store: Store | None) -> None:
    committer = get_committer(spec.committer)
    if not committer.safe and not spec.allow_unsafe:
        raise InvalidInputError(
            f"committer {committer.name!r}: readers see its files at {committer.visible_at}, before the job "
            "commits, and a crash leaves some of them; nothing was changed; use another committer, or "
            "allow_unsafe=True for a comparison"
        )
    if committer.visible_at != "job commit" and not spec.unique_filenames:
        raise InvalidInputError(
            f"committer {committer.name!r} with unique_filenames=False: files that are visible before the "
            "job commits are recognised by the job's id in their names; nothing was changed; leave "
            "unique_filenames out, or use another committer"
        )
    if committer.scope == "partitions" and spec.scope != "partitions":
        raise InvalidInputError(
            f"committer {committer.name!r} resolves conflicts by partition: leave scope out, or use "
            "'staging' for the whole destination"
        )
    if committer.place == "file systems" and store is not None and not store.url.startswith("file:"):
        raise UnsupportedStoreError(
            f"{store.url}: committer {committer.name!r} needs renames, which only file systems have; "
            "nothing was changed; use 'magic' or 'staging'"
        )


def _check_names(spec: JobSpec, store: Store | None) -> None:
    """Refuse file names and committers that need conditional create; no journal arbitrates data files."""
    if store is None or store.capabilities.conditional_create:
        return
    if not spec.unique_filenames:
        raise UnsupportedStoreError(
            f"{store.url}: unique_filenames=False needs a store that completes an upload only if its key is "
            "free, and this one has no conditional create; nothing was changed; leave it out"
        )
    if get_committer(spec.committer).visible_at != "job commit":
        raise UnsupportedStoreError(
            f"{store.url}: committer {spec.committer!r} publishes the first of several attempts, and this "
            "store has no conditional create to select it; nothing was changed; use 'magic' or 'staging'"
        )


def _unfinished_or_end(folder: JobFolder, spec: JobSpec) -> FoundJob | EndedGeneration:
    """Return an unfinished job that this run continues; else record the end of its generation."""
    record, ended, phase = None, None, folder.phase()
    with suppress(ObjectNotFoundError):  # deleted by hand, or just now by a sweep: it can never commit
        record = folder.job()
        if phase not in TERMINAL and phase is not JobPhase.QUARANTINED:
            return FoundJob(_check_same_spec(record, spec), phase)
        if spec.rerun == "once" and phase is JobPhase.COMMITTED:
            return FoundJob(record, phase)  # final, even if this run has another specification
        ended = next((mark for mark in folder.ended() if mark is not None), None)
    return record_end(folder.store, EndedGeneration(job_id=folder.job_id, job=record, ended=ended))


def _check_same_spec(record: JobRecord, spec: JobSpec) -> JobRecord:
    if record.spec == spec:
        return record
    new, old = msgspec.to_builtins(spec), msgspec.to_builtins(record.spec)
    differing = ", ".join(f"{k}: {_short(old[k])}, now {_short(v)}" for k, v in new.items() if old[k] != v)
    raise ConflictError(
        f"job {record.job_id} is unfinished and has another specification ({differing}); nothing was "
        "changed; run it as it was, abort it (`lockgate jobs abort`), or choose another name"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


def _refuse_unfit_columns(log: DestinationLog, spec: JobSpec) -> None:
    if spec.columns is not None:
        refuse_unfit_columns(spec, log.columns(), log.store.url)


def _claim_short_id(store: Store, job: JobId) -> ShortId:
    for salt in range(SHORT_ID_TRIES):
        short = short_id(store.url, job, salt)
        if claim(store, layout.short_id_claim(short), ShortIdClaim(job_id=job)).job_id == job:
            return short
    raise ConflictError(
        f"job {job} at {store.url}: {SHORT_ID_TRIES} short ids are taken; choose another name"
    )
