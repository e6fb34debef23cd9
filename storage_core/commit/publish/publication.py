"""Publish a plan: complete all its uploads, then create the turn's outcome, which is final.

Source: commit protocol, steps 6 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from lockgate.storage_core.commit.decide.plan import Plan
from lockgate.storage_core.commit.destination.log import write_live_shards
from lockgate.storage_core.commit.destination.projection import read_tables
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.shard_completion import ShardReport, complete_shard
from lockgate.storage_core.commit.publish.success_file import EarlierSuccess, earlier_success
from lockgate.storage_core.commit.publish.table_projection import statistics_of
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.log_records import KeyShard, LiveFile, Outcome, Receipt
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import FileResult
from lockgate.storage_core.commit.records.shards import ShardRef, write_shard
from lockgate.storage_core.commit.records.table_records import TablesRecord
from lockgate.storage_core.commit.uploads.own_uploads import JobUploads, uploads_of_job
from lockgate.storage_core.concurrency import Together
from lockgate.storage_core.errors import InvalidInputError, LockgateError, MalformedRecordError
from lockgate.storage_core.failpoints import step

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Publication:
    """The outcome of a turn, and what was read while this process created it, for the steps after it.

    Attributes:
        outcome: Stored outcome.
        success: `_SUCCESS` before this process created the outcome; None if it is not known.
        uploads: Open uploads of the job after its files were completed; None if they are unknown.
        tables: Table formats of the destination; unset if they are unknown.
    """

    outcome: Outcome
    success: EarlierSuccess | None = None
    uploads: JobUploads | None = None
    tables: TablesRecord | msgspec.UnsetType | None = msgspec.UNSET


def publish(context: CommitContext, decision: Decision, plan: Plan) -> Publication:
    """Complete the plan's uploads and create the turn's outcome; return the stored one.

    If all files are complete, it is `published`, and readers of the manifest see the whole job from then on.
    If a file is lost for good, it is `reverted`.

    Raises:
        OutcomeUnknownError: It is not known whether a file is complete; nothing was deleted; try again.
    """
    if plan.head.turn != decision.turn:
        key = context.folder.key("COMMIT_STARTED")
        raise MalformedRecordError(f"{key}: field turn is {decision.turn}, its plan's {plan.head.turn}")
    with Together(context.settings.near_calls) as together:
        with step("success"):
            success = together.start(lambda: _unless_refused(earlier_success, context.store))
        tables = together.start(lambda: _tables(context))
        with step("outcome-lists"):
            # A list is named by its digest, and counts only once an outcome names it.
            early = together.start(partial(_write_added, context, plan)) if plan.is_small else None
        lost = {key: why for report in _complete_all(context, plan) for key, why in report.lost.items()}
        for key, why in lost.items():
            context.report.add(FileResult(key=key, result="lost", detail=why))
        with step("outcome-lists"):
            added = () if lost else early.result() if early is not None else _write_added(context, plan)
            outcome = _outcome(context, plan, added, lost)
            if tables.result() and not lost:
                with suppress(InvalidInputError):  # too long for a record: readers of tables go without
                    statistics = tuple(statistics_of(context, plan))
                    outcome = msgspec.structs.replace(outcome, statistics=statistics)
        earlier = success.result()  # before the outcome: see `EarlierSuccess`
        with step("abort-uploads"):
            uploads = together.start(lambda: _unless_refused(uploads_of_job, context.store, context.job))
        with step("outcome"):
            stored = claim(context.store, layout.turn_outcome(plan.head.turn), outcome)
        return Publication(stored, earlier if stored is outcome else None, uploads.result(), tables.result())


def _unless_refused(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Read what later steps can read again; a failure must not keep the outcome from being created."""
    try:
        return read(*args, **kwargs)
    except LockgateError:
        return None


def _tables(context: CommitContext) -> TablesRecord | msgspec.UnsetType | None:
    """Read the destination's table formats; later steps read them again if that fails."""
    try:
        return read_tables(context.store)
    except LockgateError:
        return msgspec.UNSET


def _complete_all(context: CommitContext, plan: Plan) -> Iterator[ShardReport]:
    count = len(plan.head.additions)
    remaining = set(range(count))
    if context.completer is not None and count:
        for report in context.completer(context.store.url, context.folder.job_id, plan.name, count):
            if report.shard in remaining:
                remaining.remove(report.shard)
                context.progress("complete", count - len(remaining), count)
                yield report
    done = 0
    for shard in sorted(remaining):

        def progress(name: str, done_here: int, _total: int, done_before: int = done) -> None:
            context.progress(name, done_before + done_here, plan.files)

        yield complete_shard(
            context.job,
            plan,
            shard,
            settings=context.settings,
            clock=context.clock,
            progress=progress,
        )
        done += plan.head.additions[shard].files


def _outcome(
    context: CommitContext, plan: Plan, added: tuple[ShardRef, ...], lost: dict[str, str]
) -> Outcome:
    now_s, turn, job_id = context.clock.now_s(), plan.head.turn, context.job.job_id
    if lost:
        first = min(lost)
        return Outcome(
            job_id=job_id,
            turn=turn,
            verdict="reverted",
            decided_s=now_s,
            reason=f"{len(lost)} pending files were lost for good, the first is {first}: {lost[first]}",
        )
    removed = tuple(_removed_shards(context, plan))
    return Outcome(
        job_id=job_id,
        turn=turn,
        verdict="published",
        decided_s=now_s,
        added=added,
        removed=removed,
        columns=plan.head.columns,
        receipt=Receipt(
            job_id=job_id,
            turn=turn,
            committer=context.job.spec.committer,
            mode=plan.head.mode,
            plan=plan.name,
            files=plan.files,
            rows=plan.rows,
            size=plan.size,
            removed_files=sum(ref.files for ref in removed),
            published_s=now_s,
        ),
    )


def _write_added(context: CommitContext, plan: Plan) -> tuple[ShardRef, ...]:
    return tuple(write_live_shards(context.store, live_files(plan)))


def live_files(plan: Plan) -> Iterator[LiveFile]:
    """Yield the files that a plan adds, as the destination log lists them."""
    for file in plan.all_additions():
        if file.again is not msgspec.UNSET:
            first_key, _ = file.again.identity
            yield msgspec.structs.replace(file.again, key=file.key, first_key=first_key)
            continue
        yield LiveFile(
            key=file.key,
            size=file.upload.size,
            rows=file.rows,
            token=file.upload.token,
            job_id=plan.head.job_id,
        )


def _removed_shards(context: CommitContext, plan: Plan) -> Iterator[ShardRef]:
    for number, planned in enumerate(plan.head.removals):
        keys = tuple(file.key for file in plan.removals(number))
        name = write_shard(context.store, layout.log_shard, KeyShard(keys=keys))
        yield msgspec.structs.replace(planned, digest=name)
