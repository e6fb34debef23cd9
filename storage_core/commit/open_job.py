"""How a process comes to a job: by opening it as its driver, or by attaching to it with its ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.committers import configured_committer, get_committer
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.leases.job_journal import journal_for_job
from lockgate.storage_core.commit.records.artefacts import artefacts_of
from lockgate.storage_core.commit.records.job import Column, JobSpec, Mode, OnLapse, Rerun, ScopeName
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.commit.setup.capabilities import with_probed_capabilities
from lockgate.storage_core.commit.setup.job_setup import check_spec, set_up
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import ArtefactsGoneError, InvalidInputError, LockgateError
from lockgate.storage_core.ids import JobAttemptId, JobId, check_id, job_name, new_job_attempt_id
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.open_store import parse_destination

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
    replaced_retention_s: float = 0.0,
    artefacts: Mapping[str, Any] | None = None,
    job_attempt: str | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Job:
    """Set a job up, or meet the unfinished one of the same name again, and hold its lease.

    An undecided job gets a new job attempt; a decided one is first brought to its end, and the job that is
    returned then has a `receipt` and takes no more data. After an ended one, the next generation begins: a
    deliberate recomputation, whose commit takes the place of the generation before it.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        name: Stable over all retries of this run, such as `sales-2026-11-21`.
        mode: `append`; `replace` the data that the scope has; `fail` if it has any.
        scope: `destination`, or `partitions`: only the folders that receive data (dynamic partition
            overwrite); by default the committer's.
        committer: `magic` streams, `staging` writes to disk first, …; see `COMMITTERS`. By default what
            `LOCKGATE_COMMITTERS` and `LOCKGATE_COMMITTER` say, else `magic`.
        description: For people; stands in `_SUCCESS`.
        columns: Name and type of each column, where known; `append` refuses those that do not fit.
        evolve_schema: Let `append` bring other columns.
        staging: A directory that all workers see; by default one below `LOCKGATE_HOME`.
        audit: Require a passing audit verdict before the commit.
        on_lapse: `abort` or `resume`: what recovery does when this driver is gone, undecided.
        rerun: What a run after this one's commit does: `replace` this one's files, `append` to them, or
            nothing: `once` returns the committed job with its receipt.
        unique_filenames: False: file names stay as given; completing may then meet foreign files.
        allow_irreversible: With `unique_filenames=False`: overwrite those.
        allow_unsafe: Take a committer whose files are seen before the job commits.
        replaced_retention_s: Keep replaced files that long for readers of older log entries.
        artefacts: Handle of blobs that were uploaded for the job, `Artefacts.handle()`: they become its own
            with its set-up, and go with its end.
        job_attempt: Of a driver whose processes all open the job (Spark's tasks of a streaming batch): it is
            then parked in that driver's name instead of held by one of them.
        settings: From the environment by default.
        clock: The machine's by default.
        progress: Hears how far long steps are.

    Raises:
        InvalidInputError: An option or the destination cannot be.
        ConflictError: An unfinished job of this name was asked for something else, or the mode forbids it.
        UnsupportedStoreError: The store cannot hold the protocol's promises.
        ArtefactsGoneError: They were uploaded longer than the retention interval ago, or are another job's;
            the job was aborted.
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
        staging=staging,
        audit=audit,
        on_lapse=on_lapse,
        rerun=rerun,
        unique_filenames=unique_filenames,
        allow_irreversible=allow_irreversible,
        allow_unsafe=allow_unsafe,
        replaced_retention_s=replaced_retention_s,
        artefacts=None if artefacts is None else artefacts_of(artefacts),
    )
    check_spec(spec)
    _check_journal(spec, settings)
    journal = journal_for_job(settings, clock)
    store = with_probed_capabilities(open_store(destination, settings), settings, clock)
    shared = None if job_attempt is None else JobAttemptId(check_id("job attempt", job_attempt))
    while True:
        record = set_up(store, job_name(name), spec, description=description, clock=clock, journal=journal)
        job = Job(
            JobFolder(store, record.job_id),
            record,
            job_attempt=shared or new_job_attempt_id(),
            settings=settings,
            clock=clock,
            progress=progress or no_progress,
        )
        if job.phase() is JobPhase.OPEN:
            _begin(job, is_shared=shared is not None)
            return job
        # An earlier run was cut short after its decision. Committed: that was this run. Failed: it left
        # nothing, and the next generation takes the data.
        if job.finish() is JobPhase.COMMITTED:
            return job


def _check_journal(spec: JobSpec, settings: Settings) -> None:
    if spec.artefacts is not None and not settings.has_journal:
        raise InvalidInputError(
            "artefacts of a job need a journal, which knows what keeps a blob, and LOCKGATE_JOURNAL_URL is "
            "none; nothing was set up; unset it for SQLite below LOCKGATE_HOME, or name a PostgreSQL"
        )


def _begin(job: Job, *, is_shared: bool) -> None:
    """Take the job's lease; a job whose artefacts are gone can never do its work, and is aborted."""
    try:
        if is_shared:
            job.share()
        else:
            job.hold()
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
    """Attach to a job that was set up elsewhere, by its ids. Takes no lease; `commit` and `hold` do.

    Args:
        destination: As given to `open_job`.
        job_id: As `open_job` made it.
        job_attempt: The driver run whose tasks count; by default the newest.
        settings: From the environment by default.
        clock: The machine's by default.
        progress: Hears how far long steps are.

    Raises:
        InvalidInputError: The destination or an id cannot be.
        ObjectNotFoundError: There is no such job.
    """
    settings = settings or load_settings()
    clock = clock or SystemClock()
    folder = JobFolder(
        with_probed_capabilities(open_store(destination, settings), settings, clock), JobId(job_id)
    )
    record = folder.job()
    attempt = None if job_attempt is None else JobAttemptId(check_id("job attempt", job_attempt))
    return Job(
        folder,
        record,
        job_attempt=attempt,
        settings=settings,
        clock=clock,
        progress=progress or no_progress,
    )
