"""Set-up: the job's identity is created if absent, and nothing of the destination changes.

Source: commit protocol, "Set-up" and "Identity".
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.committers import committer_named
from lockgate.storage_core.commit.destination.conflict_mode import earlier_generations, refuse_if_occupied
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job import (
    MODES,
    Column,
    JobRecord,
    JobSpec,
    OnLapse,
    Rerun,
    Scope,
    ShortIdClaim,
)
from lockgate.storage_core.commit.records.job_folder import JobFolder, claim, job_ids
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.errors import ConflictError, InvalidInputError, UnsupportedStoreError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId, JobName, ShortId, job_id, new_token, short_id, split_job_id
from lockgate.storage_core.stores import Store

SHORT_ID_TRIES: Final = 16
SHOWN: Final = 200
"""Characters of a value in an error: a list of artefacts may be long."""


def set_up(
    store: Store, name: JobName, spec: JobSpec, *, description: str, clock: Clock, journal: str = ""
) -> JobRecord:
    """Find or create the job that this run of `name` is.

    An undecided or unfinished generation is met again; after an ended one, the next generation begins, but
    with `rerun="once"` a committed one is met for ever.

    Args:
        store: At the destination, with probed capabilities.
        name: Stable over the run's retries.
        spec: What the job is to do; must be the same in a retry.
        description: For people.
        clock: Tells the time of creation.
        journal: Where the job's leases are, for its record; empty: in its folder.

    Raises:
        InvalidInputError: The specification cannot be.
        ConflictError: The unfinished generation was asked to do something else, the mode is `fail` and the
            destination has data, or the columns do not fit it. Nothing was changed.
    """
    check_spec(spec, store)
    with step("setup"):
        newest = _newest_generation(store, name)
        if newest:
            earlier = JobFolder(store, job_id(name, newest))
            phase = earlier.phase()
            if spec.rerun == "once" and phase is JobPhase.COMMITTED:
                return earlier.job()  # done for ever, also where a later try would ask for something else
            if phase not in TERMINAL:
                return _same(earlier.job(), spec)
        _check_destination(store, spec, earlier_generations(name, newest + 1, spec))
        record = JobRecord(
            job_id=job_id(name, newest + 1),
            name=name,
            generation=newest + 1,
            short_id=_claim_short_id(store, job_id(name, newest + 1)),
            spec=spec,
            token=new_token(),
            created_s=clock.now_s(),
            created_by=who(),
            description=description,
            journal=journal,
        )
        return _same(claim(store, JobFolder(store, record.job_id).key("job.json"), record), spec)


def check_spec(spec: JobSpec, store: Store | None = None) -> None:
    """Refuse a specification that cannot be.

    Args:
        spec: Of the job.
        store: Of its destination, where it is open already.

    Raises:
        InvalidInputError: An unknown committer or mode, or options that contradict each other.
        UnsupportedStoreError: The committer cannot write to this store.
    """
    _check_committer(spec, store)
    _check_names(spec, store)
    for field, value, known in (
        ("mode", spec.mode, MODES),
        ("scope", spec.scope, get_args(Scope)),
        ("on_lapse", spec.on_lapse, get_args(OnLapse)),
        ("rerun", spec.rerun, get_args(Rerun)),
    ):
        if value not in known:
            raise InvalidInputError(f"{field} {value!r} is not known; use one of {', '.join(known)}")
    if spec.replaced_retention_s < 0:
        raise InvalidInputError(f"replaced_retention_s={spec.replaced_retention_s} must not be negative")
    if spec.allow_irreversible and spec.unique_filenames:
        raise InvalidInputError(
            "allow_irreversible=True has no meaning while file names are unique: nothing can be overwritten; "
            "leave it out, or add unique_filenames=False"
        )


def _check_committer(spec: JobSpec, store: Store | None) -> None:
    committer = committer_named(spec.committer)
    if not committer.safe and not spec.allow_unsafe:
        raise InvalidInputError(
            f"committer {committer.name!r}: readers see its files at {committer.visible_at}, before the job "
            "commits, and a crash leaves some of them; nothing was changed; use another committer, or "
            "allow_unsafe=True for a comparison"
        )
    if committer.visible_at != "job commit" and not spec.unique_filenames:
        raise InvalidInputError(
            f"committer {committer.name!r} with unique_filenames=False: files that are seen before the job "
            "commits are told from others' by the job's id in their names; nothing was changed; leave "
            "unique_filenames out, or use another committer"
        )
    if committer.scope == "partitions" and spec.scope != "partitions":
        raise InvalidInputError(
            f"committer {committer.name!r} settles conflicts by partition: leave scope out, or use "
            "'staging' for the whole destination"
        )
    if committer.place == "file systems" and store is not None and not store.url.startswith("file:"):
        raise UnsupportedStoreError(
            f"{store.url}: committer {committer.name!r} renames, which only a file system does in one step; "
            "nothing was changed; use 'magic' or 'staging'"
        )


def _check_names(spec: JobSpec, store: Store | None) -> None:
    """Where the journal is the arbiter of records, nobody is one of data files."""
    if store is None or store.capabilities.conditional_create:
        return
    if not spec.unique_filenames:
        raise UnsupportedStoreError(
            f"{store.url}: unique_filenames=False needs a store that completes an upload only where no "
            "object is, and this one has no conditional create; nothing was changed; leave it out"
        )
    if committer_named(spec.committer).visible_at != "job commit":
        raise UnsupportedStoreError(
            f"{store.url}: committer {spec.committer!r} shows the first of several attempts, and this store "
            "has no conditional create to tell which that is; nothing was changed; use 'magic' or 'staging'"
        )


def who() -> str:
    """Return `user@host:pid` of this process, for people who read a record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


def refuse_unfit_columns(
    spec: JobSpec, standing: Sequence[Column] | None, columns: Sequence[Column] | None, url: str
) -> None:
    """In `append`: refuse columns that do not fit those of the destination.

    Raises:
        ConflictError: A column is new, missing or of another type; the message names each.
    """
    if spec.mode != "append" or spec.evolve_schema or not standing or not columns:
        return
    here = {column.name: column.type for column in standing}
    new = {column.name: column.type for column in columns}
    faults = [
        f"{name} is {new[name]}, not {here[name]}" for name in new if here.get(name, new[name]) != new[name]
    ]
    faults += [f"{name} is new" for name in new if name not in here]
    faults += [f"{name} is missing" for name in here if name not in new]
    if faults:
        raise ConflictError(
            f"{url}: the columns do not fit: {'; '.join(faults[:10])}; nothing was changed; "
            "mend the data, or set evolve_schema"
        )


def _newest_generation(store: Store, name: JobName) -> int:
    found = (split_job_id(job) for job in job_ids(store, f"{layout.JOBS}{name}-g"))
    return max((generation for other, generation in found if other == name), default=0)


def _same(record: JobRecord, spec: JobSpec) -> JobRecord:
    if record.spec == spec:
        return record
    asked, standing = msgspec.to_builtins(spec), msgspec.to_builtins(record.spec)
    differing = ", ".join(
        f"{k}: {_short(standing[k])}, now {_short(v)}" for k, v in asked.items() if standing[k] != v
    )
    raise ConflictError(
        f"job {record.job_id} is unfinished and was asked for something else ({differing}); nothing was "
        "changed; run it as it was, abort it (`lockgate jobs abort`), or choose another name"
    )


def _short(value: object) -> str:
    told = repr(value)
    return told if len(told) <= SHOWN else f"{told[:SHOWN]}…"


def _check_destination(store: Store, spec: JobSpec, earlier: frozenset[JobId]) -> None:
    log = DestinationLog(store)
    if spec.mode == "fail" and spec.scope == "destination":  # which partitions get data shows at the commit
        refuse_if_occupied(store, log.manifest(), earlier)
    if spec.columns is not None:
        refuse_unfit_columns(spec, log.columns(), spec.columns, store.url)


def _claim_short_id(store: Store, job: JobId) -> ShortId:
    for salt in range(SHORT_ID_TRIES):
        short = short_id(store.url, job, salt)
        if claim(store, layout.short_id_claim(short), ShortIdClaim(job_id=job)).job_id == job:
            return short
    raise ConflictError(
        f"job {job} at {store.url}: {SHORT_ID_TRIES} short ids are taken; choose another name"
    )
