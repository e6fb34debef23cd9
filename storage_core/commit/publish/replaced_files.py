"""Delete the files that a published job replaced; record those that the store refuses, and try them again.

Until they are gone, programs that list the destination see old and new rows. The job keeps its plan and its
lease record, so recovery and the sweep return to it.
Source: commit protocol, step 8.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Final

from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.publish.commit_context import CommitContext, FileReport, read_file_results
from lockgate.storage_core.commit.records.create_if_absent import retry_while_busy
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    InvalidInputError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import step

LOG: Final = logging.getLogger("lockgate.ending")


def remove_replaced(context: CommitContext, plan: Plan, keys: Container[str] | None = None) -> None:
    """Delete the files that a published plan replaces, or those of them with these keys.

    The report of the context gets the result of each; a warning says which ones stay.

    Raises:
        OutcomeUnknownError: It is not known whether a file is deleted; the job stays published; try again.
        StoreUnavailableError: The store is busy; the job stays published; try again.
    """
    wanted = (file for file in plan.all_removals() if keys is None or file.key in keys)
    with step("remove"):
        for removed in in_parallel(
            lambda file: _remove(context, file),
            wanted,
            context.settings.near_calls,
            context.settings.far_calls,
        ):
            context.report.add(removed)
    for result, then in (("undeleted", "recovery and the sweep try again"), ("kept", "delete them by hand")):
        if text := not_deleted(context.report, result):
            LOG.warning(
                "job %s at %s: %s; programs that list the destination see them; %s",
                context.job.job_id,
                context.store.url,
                text,
                then,
            )


def remove_rest(context: CommitContext, plan: str | None, *, retained: bool = False) -> None:
    """Delete the replaced files that an ended job has left, and store the new results in its report.

    Args:
        context: Context of the job, with an empty report.
        plan: Digest of its plan.
        retained: Also delete the files that were retained for readers of older turns.
    """
    folder, report = context.folder, context.folder.report()
    waiting = {"undeleted", "retained"} if retained else {"undeleted"}
    if report is None or not any(report.counts.get(result) for result in waiting):
        return
    try:
        frozen = read_plan(folder, plan or "none")
    except ObjectNotFoundError:
        return  # another process has deleted the files, then the plan
    remove_replaced(context, frozen, {f.key for f in read_file_results(folder) if f.result in waiting})
    for earlier in read_file_results(folder):
        context.report.add(earlier)  # the first result of a file counts
    context.report.write(report)


def not_deleted(report: FileReport, result: str = "undeleted") -> str:
    """Return how many replaced files have a result, with the first one; empty if there are none."""
    first, number = report.first.get(result), report.counts[result]
    if first is None:
        return ""
    files = "1 replaced file is" if number == 1 else f"{number} replaced files are"
    return f"{files} not deleted, the first is {first.key}: {first.detail}"


def _remove(context: CommitContext, file: RemovedFile) -> FileResult:
    """Delete a replaced file if it still has the version in the plan."""
    if not file.version:
        return FileResult(key=file.key, result="removed", detail="it was gone already")
    key = file.listed_key
    try:
        if context.store.capabilities.conditional_delete:
            # Retry after a lost answer too: a delete by version cannot delete a later version.
            retry_while_busy(OutcomeUnknownError).call(context.store.delete, key, if_version=file.version)
        elif file.managed:
            context.store.delete(key)  # the name of a managed file is never used for another file
        else:
            detail = "the job does not own it, and the store cannot delete by version"
            return FileResult(key=file.key, result="kept", detail=detail)
    except PreconditionFailedError:
        return FileResult(key=file.key, result="kept", detail="it changed after the plan was made")
    except (OutcomeUnknownError, StoreUnavailableError):
        raise  # the job stays published; a retry or recovery continues here
    except InvalidInputError as error:  # of its name, which stays as it is
        return FileResult(key=file.key, result="kept", detail=str(error))
    except NotAppliedError as error:  # of a right that is missing, or a lock: both may end
        return FileResult(key=file.key, result="undeleted", detail=str(error))
    return FileResult(key=file.key, result="removed")
