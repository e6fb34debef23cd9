"""Open a job as its driver, or attach to an existing job by its id."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.committers import configured_committer, get_committer
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.overlap import refuse_overlap
from lockgate.storage_core.commit.destination.projection import enable_tables
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.leases.job_lease import journal_for_job
from lockgate.storage_core.commit.records.generations import newest_generation
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import (
    Column,
    JobOrigin,
    JobSpec,
    Mode,
    OnLapse,
    Rerun,
    ScopeName,
    artefacts_of,
)
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.setup.capabilities import with_probed_capabilities
from lockgate.storage_core.commit.setup.job_setup import check_spec, set_up
from lockgate.storage_core.concurrency import Progress, Together, no_progress
from lockgate.storage_core.errors import ArtefactsGoneError, InvalidInputError, LockgateError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId, JobId, check_id, job_name, new_job_attempt_id
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.open_store import parse_destination, parse_directory

LOG: Final = logging.getLogger("lockgate.job")


def open_job(
    destination: str,
    name: str,
    *,
    mode: Mode = "append",
    scope: ScopeName | None = None,
    committer: str | None = None,
    description: str = "",
    columns: Sequence[tuple[str, str]] | None = None,
    evolve_schema: bool = False,
    staging: str | None = None,
    audit: bool = False,
    on_lapse: OnLapse = "abort",
    rerun: Rerun = "replace",
    unique_filenames: bool = True,
    allow_irreversible: bool = False,
    allow_unsafe: bool = False,
    artefacts: Mapping[str, Any] | None = None,
    tables: Sequence[str] = (),
    job_attempt: str | None = None,
    origin: JobOrigin | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Job:
    """Create a job, or open the unfinished one of the same name, and take its lease.

    An undecided job gets a new job attempt. A decided one is first brought to its end; if it was committed,
    the returned job has a `receipt` and takes no more data. After an ended job, the next generation begins: a
    recomputation, whose commit replaces the previous generation.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        name: Name that all retries of this run share, such as `sales-2026-11-21`.
        mode: `append`; `replace` the data in the scope; `fail` if the scope has data; `compact`: replace the
            files that `Job.commit` names, by the same rows in other files; `revert`: see `revert_to_turn`.
        scope: `destination`, or `partitions`: only the folders that receive data (dynamic partition
            overwrite). By default that of the committer.
        committer: `magic` streams, `staging` writes to disk first, …; see `COMMITTERS`. By default that of
            `LOCKGATE_COMMITTERS` and `LOCKGATE_COMMITTER`, else `magic`.
        description: Text for people; `_SUCCESS` contains it.
        columns: Name and type of each column, if known; those of data that stay must match.
        evolve_schema: Allow new columns, missing columns and wider types.
        staging: Directory that all workers can access; by default one below `LOCKGATE_HOME`.
        audit: Require a passed audit before the commit.
        on_lapse: `abort` or `resume`: what recovery does if the lease lapses before the decision.
        rerun: What a run after the commit of this one does: `replace` its files, `append` to them, or
            nothing: `once` returns the committed job with its receipt.
        unique_filenames: False keeps file names as given; a file may then have the name of an existing one.
        allow_irreversible: With `unique_filenames=False`: overwrite existing files.
        allow_unsafe: Allow a committer whose files are visible before the job commit.
        artefacts: Handle of blobs that were uploaded for the job, `Artefacts.handle()`. The job owns them
            from its set-up to its end.
        tables: Table formats that the destination's turns are projected into from now on: `delta`, `iceberg`.
            Readers of these formats see each commit as one version. The destination remembers them.
        job_attempt: Id of the driver run if several of its processes open the job (Spark's tasks of a
            streaming batch): the job is then suspended for that run, and no process holds it.
        origin: The Airflow task that sets the job up, for lists of jobs.

    Raises:
        InvalidInputError: An option or the destination is not valid.
        ConflictError: An unfinished job of this name has other options, the mode forbids the write, or the
            destination is new, and below or above another one.
        UnsupportedStoreError: The store lacks an operation that the protocol requires.
        ArtefactsGoneError: The artefacts were uploaded longer than the retention interval ago, or belong to
            another job; the job was aborted.
        JournalUnavailableError: The journal cannot be reached; nothing was written.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    committer = committer or configured_committer(parse_destination(destination), settings, "magic")
    spec = JobSpec(
        committer=committer,
        mode=mode,
        scope=scope or get_committer(committer).scope,
        columns=None if columns is None else tuple(Column(*column) for column in columns),
        evolve_schema=evolve_schema,
        staging=None if staging is None else parse_directory(staging),
        audit=audit,
        on_lapse=on_lapse,
        rerun=rerun,
        unique_filenames=unique_filenames,
        allow_irreversible=allow_irreversible,
        allow_unsafe=allow_unsafe,
        artefacts=None if artefacts is None else artefacts_of(artefacts),
    )
    check_spec(spec)
    if spec.artefacts is not None and not settings.has_journal:
        raise InvalidInputError(
            "artefacts of a job need a journal, which records the references to blobs, and "
            "LOCKGATE_JOURNAL_URL is none; nothing was set up; unset it for SQLite below LOCKGATE_HOME, or "
            "name a PostgreSQL"
        )
    journal = journal_for_job(settings, clock)
    store = open_store(destination, settings)
    shared = None if job_attempt is None else JobAttemptId(check_id("job attempt", job_attempt))
    with Together(settings.near_calls) as together:
        with step("setup"):
            overlap = together.start(partial(refuse_overlap, store, settings))
            look = partial(newest_generation, store, job_name(name), clock)
            newest = together.start(look)
        store = with_probed_capabilities(store, settings, clock, before_probe=overlap.result)
        if tables:
            overlap.result()
            enable_tables(DestinationLog(store, settings.near_calls), tables, clock, columns=spec.columns)
        while True:
            record, phase, ended = set_up(
                store,
                job_name(name),
                newest.result,
                spec,
                description=description,
                clock=clock,
                journal=journal,
                origin=origin,
                at_once=settings.near_calls,
                before_create=overlap.result,
            )
            job = Job(
                JobFolder(store, record.job_id),
                record,
                job_attempt=shared or new_job_attempt_id(),
                settings=settings,
                clock=clock,
                progress=progress or no_progress,
                is_driver=True,
                ended=ended,
            )
            if phase is JobPhase.OPEN:
                break
            # An earlier run crashed after its decision. If it has committed, its commit counts as this run's.
            # If it failed, it left no data, and the next generation takes the data.
            if job.finish() is JobPhase.COMMITTED:
                return job
            newest = together.start(look)
    _begin(job, is_shared=shared is not None)
    return job


def _begin(job: Job, *, is_shared: bool) -> None:
    """Take the job's lease. A job whose artefacts are gone can never commit, so it is aborted."""
    try:
        if is_shared:
            job.share()
        else:
            job.take_lease()
    except ArtefactsGoneError as error:
        try:
            job.abort(str(error))
        except LockgateError as second:
            LOG.warning("job %s could not be aborted now (%s): recovery will", job.job_id, second)
        raise


def attach_job(
    destination: str,
    job_id: str,
    *,
    job_attempt: str | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Job:
    """Attach to an existing job by its id, without its lease: `commit` and `take_lease` take it.

    Args:
        destination: Destination of the job, as in `open_job`.
        job_id: Id of the job.
        job_attempt: Driver run whose tasks the commit includes; by default the newest.

    Raises:
        InvalidInputError: The destination or an id is not valid.
        ObjectNotFoundError: There is no such job.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    folder = JobFolder(
        with_probed_capabilities(open_store(destination, settings), settings, clock), JobId(job_id)
    )
    return Job(
        folder,
        folder.job(),
        job_attempt=None if job_attempt is None else JobAttemptId(check_id("job attempt", job_attempt)),
        settings=settings,
        clock=clock,
        progress=progress or no_progress,
    )
