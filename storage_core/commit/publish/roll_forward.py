"""From the decision on there is only forward: any process brings a decided job to its end.

Each phase has one step; it may be repeated by anyone, and leads to a phase that the table allows.
Source: commit protocol, "Recovery".
"""

from __future__ import annotations

from lockgate.storage_core.commit.publish.cleanup import clean_up
from lockgate.storage_core.commit.publish.commit_context import JobWork
from lockgate.storage_core.commit.publish.finalization import drop_uploads, finish
from lockgate.storage_core.commit.publish.publication import publish
from lockgate.storage_core.commit.publish.rollback import abort, revert
from lockgate.storage_core.commit.records.job import Ended
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase, advance, phase_of
from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError


def roll_forward(work: JobWork) -> Ended:
    """Bring a decided job to its terminal marker; returns it. Repeating it is harmless.

    Raises:
        ConflictError: The job is undecided.
        OutcomeUnknownError: A file or a marker is not settled; nothing was deleted on that; try again.
        MalformedRecordError: A marker or the plan cannot be read; nothing was touched.
    """
    try:
        ended = _to_the_end(work)
    except ObjectNotFoundError:
        # Another process may have ended the job and cleaned up its plan under our hands.
        if work.folder.phase() not in TERMINAL:
            raise
        ended = _to_the_end(work)
    _register(work, JobPhase(ended.ended))
    return ended


def _to_the_end(work: JobWork) -> Ended:
    decision = work.folder.decision()
    outcome = work.folder.outcome(decision)
    success, failure = work.folder.ended()
    phase = phase_of(decision, outcome, success, failure)
    if decision is None:
        raise ConflictError(f"job {work.job.job_id} is undecided: commit or abort it")
    if phase not in TERMINAL:
        _register(work, phase)
    if phase is JobPhase.DECIDED:
        outcome = publish(work, decision)
        phase = advance(phase, phase_of(decision, outcome, None, None))
    if phase is JobPhase.PUBLISHED and outcome is not None:
        advance(phase, JobPhase.COMMITTED)
        return finish(work, decision, outcome)
    if phase is JobPhase.REVERTING and outcome is not None:
        advance(phase, JobPhase.FAILED)
        return revert(work, decision, outcome)
    if phase is JobPhase.ABORTING:
        advance(phase, JobPhase.FAILED)
        return abort(work, decision)
    standing = success or failure
    if standing is None:
        raise AssertionError(phase)
    if drop_uploads(work) and not standing.retained_until_s:
        clean_up(work.folder, work.job, work.settings)
    return standing


def _register(work: JobWork, phase: JobPhase) -> None:
    if work.settings.has_journal:
        from lockgate.storage_core.commit.leases.registry import register_job  # noqa: PLC0415 - SQLAlchemy: half a second

        register_job(work.folder, work.job, phase, settings=work.settings, clock=work.clock)
