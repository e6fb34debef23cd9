"""Complete one shard of a decided plan, in any process, so that its files become visible.

Source: commit protocol, step 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.committers import is_visible_early
from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.job_events import acting_as, record_event
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.uploads.upload_completion import Completions
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of completing one shard.

    Attributes:
        shard: Number of the shard in the plan, from 0.
        completed: Number of files that are visible now.
        lost: Keys that are lost for good, and why: see `upload_completion.Completions`.
    """

    shard: int
    completed: int
    lost: dict[str, str] = {}


ShardCompleter = Callable[[str, JobId, str, int], Iterable[ShardReport]]
"""Completes a plan's shards elsewhere: `(destination, job id, plan digest, number of shards)`.

It may report only some of the shards; the caller completes the others. It makes no decisions.
"""


def complete_shard(
    job: JobRecord,
    plan: Plan,
    shard: int,
    *,
    settings: Settings,
    clock: Clock,
    progress: Progress = no_progress,
) -> ShardReport:
    """Complete one shard of a decided plan. Several processes may do so at once.

    Raises:
        OutcomeUnknownError: It is not known whether a file is complete; nothing was deleted; try again.
        ObjectNotFoundError: The plan is gone: the job has ended.
    """
    with step("complete"):
        files, spec = plan.additions(shard), job.spec
        completions = Completions(
            plan.folder.store,
            if_absent=not spec.unique_filenames and not spec.allow_irreversible,
            # With early visibility, several attempts of a task write the same name.
            verify=not spec.unique_filenames or is_visible_early(spec),
            clock=clock,
        )
        uploads = (file.upload for file in files)
        completed = completions.run(uploads, settings.near_calls, settings.far_calls)
        lost = {}
        with closing(completed):  # if `progress` raises, no call stays under way
            for done, (key, why_lost) in enumerate(completed, start=1):
                progress("complete", done, len(files))
                if why_lost is not None:
                    lost[key] = why_lost
    detail = f"{len(lost)} files are lost" if lost else ""
    record_event(
        plan.folder,
        job,
        "shard completed",
        settings,
        clock,
        shard=shard,
        files=len(files) - len(lost),
        detail=detail,
    )
    return ShardReport(shard=shard, completed=len(files) - len(lost), lost=lost)


def complete_shard_of(destination: str, job: JobId, plan: str, shard: int, settings: Settings) -> ShardReport:
    """Complete a shard that is given by names only, for workers."""
    folder = JobFolder(open_store(destination, settings), job)
    with step("complete"):
        found, record = read_plan(folder, plan), folder.job()
    with acting_as("worker"):
        return complete_shard(record, found, shard, settings=settings, clock=SystemClock())
