"""Completion: the plan's uploads become visible, in shards that anyone may take, as often as they like.

Source: commit protocol, step 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.commit.committers import shows_early
from lockgate.storage_core.commit.decide.plan import read_plan
from lockgate.storage_core.commit.records.job import PendingFile
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.concurrency import Progress, in_parallel, no_progress
from lockgate.storage_core.errors import (
    AccessDeniedError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import PendingUpload, Store, open_store

SETTLE_TRIES: Final = 5
NOT_ABOUT_THE_FILE: Final = (AccessDeniedError, UnsupportedStoreError, ObjectNotFoundError)
"""Refusals that an operator mends (a permission, a bucket): the job stays decided, and no file is lost."""


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
                verify=not spec.unique_filenames or shows_early(spec),
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


def complete(store: Store, pending: PendingUpload, *, if_absent: bool, verify: bool, clock: Clock) -> bool:
    """Make one upload visible, whatever the answers.

    Args:
        if_absent: Only where no object is.
        verify: Read the object even after a success: where names are not unique, some stores answer 200
            to the completion of an upload that is gone if any object stands at its key.

    Returns:
        Whether its object stands. False: lost for good, for the store refuses to complete it, time and
        again and definitely, or the upload is gone; *and* the object is absent or not ours.

    Raises:
        OutcomeUnknownError: Neither is known after several tries.
    """
    error: LockgateError | None = None
    for attempt in range(SETTLE_TRIES):
        if attempt:
            clock.sleep(0.1 * 2**attempt)
        try:
            store.complete_upload(pending, if_absent=if_absent)
        except NOT_ABOUT_THE_FILE:
            raise
        except (NotAppliedError, OutcomeUnknownError) as answer:
            error = answer
        else:
            if not verify:
                return True
            error = UploadGoneError(f"{store.url}/{pending.key}: completed, but its object is another's")
        settled = _settle(store, pending, error, last=attempt == SETTLE_TRIES - 1)
        if settled is not None:
            return settled
    raise OutcomeUnknownError(
        f"{store.url}/{pending.key}: completing it was tried {SETTLE_TRIES} times; it is not known whether "
        f"it is visible ({error}); nothing was deleted; run recovery for its job"
    )


def _settle(store: Store, pending: PendingUpload, error: LockgateError, *, last: bool) -> bool | None:
    """Read what stands: True completed, False lost for good, None not known yet."""
    try:
        if store.holds(pending):
            return True
        if not last:
            # Somebody else's completion of the same upload may be about to show its object: look again.
            return None
        definite = isinstance(error, NotAppliedError) and not isinstance(error, StoreUnavailableError)
        return False if definite or not is_open(store, pending) else None
    except (OutcomeUnknownError, StoreUnavailableError):
        return None


def is_open(store: Store, pending: PendingUpload) -> bool:
    """Tell whether an upload is still open."""
    return any(
        info.key == pending.key and info.upload_id == pending.upload_id
        for page in store.upload_pages(pending.key)
        for info in page
    )
