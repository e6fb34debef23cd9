"""Take away the files that a published job replaced; record those that the store refuses, and try them again.

They are deleted, or, if the destination keeps history, moved to where no program lists them: made there
first, then deleted at their key. Until they are gone, programs that list the destination see old and new
rows. The job keeps its plan and its lease record, so recovery and the sweep return to it.
Source: commit protocol, step 8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from contextlib import suppress
from functools import cache, partial
from typing import Final, Literal

from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.destination.kept_files import rule_or_longest
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.publish.commit_context import CommitContext, FileReport, read_file_results
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import retry_while_busy
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.commit.uploads.copied_upload import copied_upload
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
from lockgate.storage_core.stores import Store

LOG: Final = logging.getLogger("lockgate.ending")


def remove_replaced(
    context: CommitContext,
    plan: Plan,
    keys: Container[str] | None = None,
) -> None:
    """Take away the files that a published plan replaces, or those of them with these keys.

    The report of the context gets the result of each; a warning says which ones stay.

    Args:
        context: Context of the job.
        plan: Its plan.
        keys: Files that the job's end has left.

    Raises:
        OutcomeUnknownError: It is not known whether a file is deleted; the job stays published; try again.
        StoreUnavailableError: The store is busy; the job stays published; try again.
    """
    wanted = (file for file in plan.all_removals() if keys is None or file.key in keys)
    live = cache(lambda: DestinationLog(context.store).manifest().files)
    rule = rule_or_longest(context.store) if plan.head.removals else None
    with step("remove"):
        for removed in in_parallel(
            lambda file: _remove(context.store, file, live, rule),
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


def remove_rest(context: CommitContext, plan: str | None) -> None:
    """Take away the replaced files that an ended job has left, and store the new results in its report.

    Args:
        context: Context of the job, with an empty report.
        plan: Digest of its plan.
    """
    folder, report = context.folder, context.folder.report()
    if report is None or not report.counts.get("undeleted"):
        return
    keys = {file.key for file in read_file_results(folder) if file.result == "undeleted"}
    try:
        frozen = read_plan(folder, plan or "none")
    except ObjectNotFoundError:
        return  # another process has deleted the files, then the plan
    remove_replaced(context, frozen, keys)
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
    store: Store, file: RemovedFile, live: Callable[[], Container[str]], rule: HistoryRule | None
) -> FileResult:
    """Take away a replaced file if it has the version in the plan, and no later job has published it."""
    result: Literal["removed", "kept", "retained", "undeleted"] = "removed"
    detail = ""
    try:
        if not file.version:
            detail = "it was gone already"
        # Versions that are ETags are those of the bytes: a later file with the same bytes has the same.
        elif not file.managed and file.key in live():
            detail = "a later job has published a file there"
        elif not (file.managed or store.capabilities.conditional_delete):
            result, detail = "kept", "the job does not own it, and the store cannot delete by version"
        else:
            # The history has no other files: no turn has them, or their names may be used again.
            if rule is not None and file.managed:
                keep = partial(_keep, store, file, in_place=rule.in_place)
                result, detail = retry_while_busy(OutcomeUnknownError).call(keep)
            if rule is None or not rule.in_place or result == "removed":
                _delete(store, file)
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


def _delete(store: Store, file: RemovedFile) -> None:
    if store.capabilities.conditional_delete:
        # Retry after a lost answer too: a delete by version cannot delete a later version.
        delete = partial(store.delete, file.listed_key, if_version=file.version)
        retry_while_busy(OutcomeUnknownError).call(delete)
    else:
        store.delete(file.listed_key)  # the job owns it: its name is never used for another file


def _keep(store: Store, file: RemovedFile, *, in_place: bool) -> tuple[Literal["removed", "retained"], str]:
    """Make a file, or a note of it, where no program lists it; repeating it is harmless."""
    place = layout.kept(file.key)
    try:
        if in_place:
            store.put(place, b"")
        else:
            with suppress(ObjectNotFoundError):  # an earlier try has moved it
                store.complete_upload(copied_upload(store, file.key, file.size, place))
    except InvalidInputError as error:
        return "removed", f"it is not kept for readers of earlier turns: {error}"
    return "retained", ""
