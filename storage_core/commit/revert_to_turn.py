"""Make the files of an earlier turn live again, by a job that takes those that are not as its own files.

They get new names: no process that removes an earlier file, however late, can touch one that is live again.
A file system links them, S3 copies them.

Source: tables, "Reading as of a turn".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec.structs import astuple

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.destination.as_of import AsOf, manifest_as_of
from lockgate.storage_core.commit.destination.kept_files import history_rule, kept_keys
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.projection import read_tables
from lockgate.storage_core.commit.destination.turn_history import Difference, difference
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.open_or_attach import open_job
from lockgate.storage_core.commit.records.job_record import JobOrigin
from lockgate.storage_core.commit.records.log_records import LiveFile, Receipt
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.ids import TaskId, without_short_id
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.protocol import in_pages

FILES_OF_A_TASK: Final = 200
"""Files in one task of the job, which keeps its pending set small."""


class Reverted(NamedTuple):
    """A revert, or what it would change.

    Attributes:
        difference: From the last turn, when the revert began, to the turn whose files are to be live.
        receipt: Receipt of the job; None of a dry run.
    """

    difference: Difference
    receipt: Receipt | None


def revert_to_turn(
    destination: str,
    to: AsOf,
    *,
    dry_run: bool = False,
    name: str | None = None,
    origin: JobOrigin | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Reverted:
    """Make exactly the files of an earlier turn live again, as one job of mode `revert`.

    The turns in between stay in the log, and so can be reverted to. Files that are live no more are deleted,
    unless the history rule keeps them.

    Args:
        destination: `s3://bucket/prefix`, `file:///dir` or a path.
        to: A turn, a time or a tag: see `read_manifest`.
        dry_run: Only return what would change.
        name: Name of the job; by default a new one. A job of this name that has committed stays the only one.
        origin: The Airflow task that reverts, for lists of jobs.
        settings: Settings; by default those of the environment.
        clock: Clock, for tests.

    Raises:
        InvalidInputError: There is no such turn, or files of it are gone.
        ConflictError: Neither the history rule nor a tag keeps a file that must be live again; or another job
            has removed or restored one meanwhile. Nothing was changed.
        OutcomeUnknownError: It is unknown whether the job is decided; recovery resolves it.
    """
    settings, clock = settings or load_settings(), clock or SystemClock()
    log = DestinationLog(open_store(destination, settings), settings.near_calls)
    wanted = manifest_as_of(log, to)
    change = difference(log, log.manifest().turn, wanted.turn)
    # A file that is kept now is not deleted for a day: the sweep waits after it has found it unneeded.
    kept = kept_keys(log, history_rule(log.store), clock.now_s()) if change.added else set[str]()
    unkept = {file.key for file in change.added} - kept
    if unkept:
        raise ConflictError(
            f"{log.store.url}: neither the history rule nor a tag keeps {len(unkept)} files of turn "
            f"{wanted.turn}, such as {min(unkept)}, so they may be deleted at any time; nothing was changed; "
            "set a longer rule with `lockgate keep`, or tag the turn, and try again"
        )
    if dry_run:
        return Reverted(change, None)
    with open_job(
        destination,
        name or f"revert-{uuid4()}",
        mode="revert",
        committer="magic",
        rerun="once",
        origin=origin,
        description=f"revert to turn {wanted.turn}",
        columns=None if wanted.all_columns is None else list(map(astuple, wanted.all_columns)),
        settings=settings,
        clock=clock,
    ) as job:
        if job.receipt is None:
            _take_again(job, {file.key: (file, wanted.path(file.key)) for file in change.added}, settings)
        return Reverted(change, job.commit(restores=wanted, allow_empty=True))


def _take_again(job: Job, files: Mapping[str, tuple[LiveFile, str]], settings: Settings) -> None:
    """Make files, by key and each with its place, those of tasks of the job."""
    plain, has_tables = Counter(map(without_short_id, files)), read_tables(job.store) is not None
    for number, page in enumerate(in_pages(files.items(), FILES_OF_A_TASK)):
        with job.attempt(TaskId(f"files-{number:05d}")) as attempt:

            def take(
                item: tuple[str, tuple[LiveFile, str]], add: Callable[..., None] = attempt.add_again
            ) -> None:
                key, (file, place) = item
                name = without_short_id(key)
                # Those of several jobs may differ in these ids only.
                path = key if plain[name] > 1 or name in files else name
                add(path, file, place, with_statistics=has_tables)

            for _ in in_parallel(take, page, settings.near_calls, settings.far_calls):
                pass
