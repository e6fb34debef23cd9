"""Delete the files that a published job replaced; record those that the store refuses, and try them again.

Until they are gone, programs that list the destination see old and new rows. The job keeps its plan and its
lease record, so recovery and the sweep return to it.
Source: commit protocol, step 8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from functools import cache, partial
from typing import Final, Literal

from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.publish.commit_context import CommitContext, FileReport, read_file_results
from lockgate.storage_core.commit.records.create_if_absent import retry_while_busy
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import (
    FileBusyError,
    InvalidInputError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.printable import printable

LOG: Final = logging.getLogger("lockgate.ending")


def remove_replaced(
    context: CommitContext,
    plan: Plan,
    keys: Container[str] | None = None,
    unneeded: Container[str] = (),
) -> None:
    """Delete the files that a published plan replaces, or those of them with these keys.

    The report of the context gets the result of each; a warning says which ones stay.

    Args:
        context: Context of the job.
        plan: Its plan.
        keys: Files that the job's end has left. Those that a revert has made live again stay.
        unneeded: Those of them that are known not to be live.

    Raises:
        OutcomeUnknownError: It is not known whether a file is deleted; the job stays published; try again.
        StoreUnavailableError: The store is busy; the job stays published; try again.
    """
    wanted = (file for file in plan.all_removals() if keys is None or file.key in keys)
    live = cache(lambda: DestinationLog(context.store).manifest().files)
    with step("remove"):
        for removed in in_parallel(
            lambda file: _remove(
                context, file, live, may_be_live=keys is not None and file.key not in unneeded
            ),
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


def remove_rest(context: CommitContext, plan: str | None, retained: Container[str] = ()) -> None:
    """Delete the replaced files that an ended job has left, and store the new results in its report.

    Args:
        context: Context of the job, with an empty report.
        plan: Digest of its plan.
        retained: Also delete those files with these keys that were retained for readers of older turns.
    """
    folder, report = context.folder, context.folder.report()
    if report is None or not any(report.counts.get(result) for result in ("undeleted", "retained")):
        return
    keys = {
        file.key
        for file in read_file_results(folder)
        if file.result == "undeleted" or (file.result == "retained" and file.key in retained)
    }
    try:
        frozen = read_plan(folder, plan or "none")
    except ObjectNotFoundError:
        return  # another process has deleted the files, then the plan
    remove_replaced(context, frozen, keys, retained)
    for earlier in read_file_results(folder):
        context.report.add(earlier)  # the first result of a file counts
    context.report.write(report)


def not_deleted(report: FileReport, result: str = "undeleted") -> str:
    """Return how many replaced files have a result, with the first one; empty if there are none."""
    first, number = report.first.get(result), report.counts[result]
    if first is None:
        return ""
    files = "1 replaced file is" if number == 1 else f"{number} replaced files are"
    return f"{files} not deleted, the first is {printable(first.key)}: {printable(first.detail)}"


def _remove(
    context: CommitContext, file: RemovedFile, live: Callable[[], Container[str]], *, may_be_live: bool
) -> FileResult:
    """Delete a replaced file if it still has the version in the plan, and no later job has published it."""
    result: Literal["removed", "kept", "undeleted"] = "removed"
    detail = ""
    try:
        if not file.version:
            detail = "it was gone already"
        # Versions that are ETags are those of the bytes: a later file with the same bytes has the same.
        elif (may_be_live or not file.managed) and file.key in live():
            detail = "a later job has published a file there"
        elif context.store.capabilities.conditional_delete:
            # Retry after a lost answer too: a delete by version cannot delete a later version.
            delete = partial(context.store.delete, file.listed_key, if_version=file.version)
            retry_while_busy(OutcomeUnknownError).call(delete)
        elif file.managed:
            context.store.delete(file.listed_key)  # its name is never used for another file
        else:
            result, detail = "kept", "the job does not own it, and the store cannot delete by version"
    except PreconditionFailedError:
        result, detail = "kept", "it changed after the plan was made"
    except FileBusyError as error:
        result, detail = "undeleted", str(error)
    except (OutcomeUnknownError, StoreUnavailableError):
        raise  # the job stays published; a retry or recovery continues here
    except InvalidInputError as error:  # of its name, which stays as it is
        result, detail = "kept", str(error)
    except NotAppliedError as error:  # for want of a right, which may be granted
        result, detail = "undeleted", str(error)
    return FileResult(key=file.key, result=result, detail=detail)
