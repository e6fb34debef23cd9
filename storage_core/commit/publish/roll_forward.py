"""Roll a decided job forward to its end, from any process.

Each phase has one step. Any process may repeat it, and it leads to a phase that the phase table allows.
Source: commit protocol, "Recovery".
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.job_events import record_event
from lockgate.storage_core.commit.publish.cleanup import Marks, clean_up
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.publish.finalization import drop_uploads, finish
from lockgate.storage_core.commit.publish.publication import Publication, publish
from lockgate.storage_core.commit.publish.replaced_files import remove_rest
from lockgate.storage_core.commit.publish.rollback import abort, revert
from lockgate.storage_core.commit.publish.table_projection import project_turn
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase, advance, phase_of
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.commit.uploads.upload_completion import NOT_ABOUT_THE_FILE
from lockgate.storage_core.errors import (
    ConflictError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)

LOG: Final = logging.getLogger("lockgate.commit")


class Decided(NamedTuple):
    """A commit that this process has just decided, and the plan that it has frozen."""

    decision: Decision
    plan: Plan


def roll_forward(context: CommitContext, decided: Decided | None = None, *, discard: bool = False) -> Ended:
    """Bring a decided job to its end; return its terminal marker. Repeating it is harmless.

    Args:
        context: Context of the job.
        decided: What this process knows, because it has just decided; by default it is read.
        discard: Abort the job if it is in quarantine.

    Raises:
        ConflictError: The job is undecided, or in quarantine.
        OutcomeUnknownError: The state of a file or a marker is not known; nothing was deleted; try again.
        MalformedRecordError: A marker or the plan cannot be read; nothing was changed.
    """
    try:
        ended = _roll_forward(context, decided, discard=discard)
    except ObjectNotFoundError:
        # Another process may have ended the job and deleted its plan meanwhile.
        if context.folder.phase() not in TERMINAL:
            raise
        ended = _roll_forward(context, None, discard=discard)
    _register(context, JobPhase(ended.ended), ended=ended)
    return ended


def _roll_forward(context: CommitContext, decided: Decided | None, *, discard: bool) -> Ended:
    decision = context.folder.decision() if decided is None else decided.decision
    # Read even right after the decision: a turn that was passed before it must not make any file visible.
    outcome = context.folder.outcome(decision)
    # Another process may have brought the job to its end since; each step below may be repeated.
    success, failure = context.folder.ended() if decided is None else (None, None)
    phase = phase_of(decision, outcome, success, failure)
    if decision is None:
        raise ConflictError(f"job {context.job.job_id} is undecided: commit or abort it")
    if phase is JobPhase.QUARANTINED and not discard:
        raise ConflictError(
            f"job {context.job.job_id} at {context.store.url} is in quarantine "
            f"({decision.reason or 'no reason'}): it publishes nothing, and nothing was changed; run it "
            "again under its name; to delete what this one wrote, run "
            f"`lockgate jobs abort {context.store.url} {context.job.job_id}`"
        )
    if phase not in TERMINAL:
        _register(context, phase, decision)
        _log(context, phase, detail=decision.reason)
    if phase in {JobPhase.DECIDED, JobPhase.PUBLISHED, JobPhase.REVERTING}:
        plan = read_plan(context.folder, decision.plan or "") if decided is None else decided.plan
        publication = None if outcome is None else Publication(outcome)
        if publication is None:
            publication = _publish(context, decision, plan)
            phase = advance(phase, phase_of(decision, publication.outcome, None, None))
            _log(context, phase, detail=publication.outcome.reason)
        if phase is JobPhase.PUBLISHED:
            advance(phase, JobPhase.COMMITTED)
            return _logged(context, finish(context, decision, plan, publication))
        advance(phase, JobPhase.FAILED)
        return _logged(context, revert(context, decision, plan, publication.outcome))
    if phase in {JobPhase.ABORTING, JobPhase.QUARANTINED}:
        advance(phase, JobPhase.FAILED)
        return _logged(context, abort(context, decision, outcome))
    ended = success or failure
    if ended is None:
        raise AssertionError(phase)
    if success is not None:
        remove_rest(context, decision.plan)
        if outcome is not None:
            project_turn(context, outcome.turn)
    all_dropped = drop_uploads(context, Marks(decision, outcome))
    is_waiting = context.report.counts["undeleted"] or context.tables.is_waiting
    if all_dropped and not is_waiting and not ended.retained_until_s:
        try:
            clean_up(context.folder, context.job, context.settings)
        except NotAppliedError as error:
            LOG.warning("%s", error)  # the job's result is the same
    return ended


def _publish(context: CommitContext, decision: Decision, plan: Plan) -> Publication:
    """Publish a plan; name the way out to whom the store refuses it."""
    try:
        return publish(context, decision, plan)
    except (OutcomeUnknownError, *NOT_ABOUT_THE_FILE) as error:
        raise type(error)(
            f"{error}; until job {context.job.job_id} is completed, no other job commits here; if the store "
            f"never lets it, run `lockgate jobs abort --revert {context.store.url} {context.job.job_id}`"
        ) from error


def _logged(context: CommitContext, ended: Ended) -> Ended:
    receipt = ended.receipt
    facts = (
        {} if receipt is None else {"files": receipt.files, "rows": receipt.rows, "size_bytes": receipt.size}
    )
    _log(context, JobPhase(ended.ended), detail=ended.reason, **facts)
    return ended


def _log(context: CommitContext, phase: JobPhase, **facts: Any) -> None:
    record_event(
        context.folder, context.job, "phase", context.settings, context.clock, phase=str(phase), **facts
    )


def _register(
    context: CommitContext, phase: JobPhase, decision: Decision | None = None, ended: Ended | None = None
) -> None:
    if context.settings.has_journal:
        from lockgate.storage_core.commit.leases.registration import (  # noqa: PLC0415 - SQLAlchemy: half a second
            JobFacts,
            register_job,
            rest_of,
        )

        register_job(
            context.folder,
            context.job,
            phase,
            settings=context.settings,
            clock=context.clock,
            facts=JobFacts(
                decision=decision,
                ended=ended,
                tasks=context.tasks,
                rest=rest_of(phase, context.report.counts),
            ),
        )
