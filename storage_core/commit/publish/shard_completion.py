"""Completion: the plan's uploads become visible, in shards that anyone may take, as often as they like.

Source: commit protocol, step 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.committers import is_visible_early
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.task import PendingFile
from lockgate.storage_core.commit.uploads.upload_completion import complete
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one shard's uploads.

    Attributes:
        shard: Its number in the plan, from 0.
        completed: How many files are visible now.
        lost: Keys whose upload is gone while their object is absent or another's: lost for good.
    """

    shard: int
    completed: int
    lost: tuple[str, ...] = ()


ShardCompleter = Callable[[str, JobId, str, int], Iterable[ShardReport]]
"""Completes a plan's shards elsewhere: `(destination, job id, plan digest, number of shards)`.

May report fewer shards than there are: the caller completes the rest itself. Only reports; decides nothing.
"""


def complete_shard(
    folder: JobFolder,
    plan: str,
    shard: int,
    *,
    settings: Settings,
    clock: Clock,
    progress: Progress = no_progress,
) -> ShardReport:
    """Complete one shard of a decided plan; idempotent, in any process, beside any other.

    Raises:
        OutcomeUnknownError: A file is neither settled nor lost; nothing was deleted; try again.
        ObjectNotFoundError: The plan is gone: the job has ended.
    """
    with step("complete"):
        frozen = read_plan(folder, plan)
        files = frozen.additions(shard)
        spec = folder.job().spec
        if_absent = not spec.unique_filenames and not spec.allow_irreversible

        def settle(file: PendingFile) -> str | None:
            completed = complete(
                folder.store,
                file.upload,
                if_absent=if_absent,
                # Several attempts that show a file early share its name.
                verify=not spec.unique_filenames or is_visible_early(spec),
                clock=clock,
            )
            return None if completed else file.key

        lost = []
        for done, key in enumerate(in_parallel(settle, files, settings.parallelism), start=1):
            progress("complete", done, len(files))
            if key is not None:
                lost.append(key)
    return ShardReport(shard=shard, completed=len(files) - len(lost), lost=tuple(sorted(lost)))


def complete_shard_of(destination: str, job: JobId, plan: str, shard: int, settings: Settings) -> ShardReport:
    """`complete_shard` by names only, for workers."""
    folder = JobFolder(open_store(destination, settings), job)
    return complete_shard(folder, plan, shard, settings=settings, clock=SystemClock())
