"""The interface to the code: `phase_of` reads phases, and recovery uses its own table."""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from typing import Final

from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.records.job_record import OnLapse
from lockgate.storage_core.commit.records.log_records import Outcome as OutcomeRecord
from lockgate.storage_core.commit.records.phase import JobPhase, phase_of
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.report import Ended
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction, choose_action
from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.ids import JobId, Token
from lockgate.storage_core.stamp import Stamp
from tests.model.commit.state import NO_OUTCOME, End, Job, Outcome, Store, Verdict

_JOB: Final = JobId("job-g1")
LEFT_ALONE: Final = frozenset({JobLeaseState.LIVE, JobLeaseState.SUSPENDED})


def phase(store: Store, job: Job) -> JobPhase:
    """Derive a job's phase from its markers.

    Raises:
        MalformedRecordError: They contradict each other.

    Source: `JobFolder.phase`.
    """
    folder = store.folders[job]
    outcome = outcome_of(store, job)
    if outcome.end is not End.NONE and outcome.job is not job:
        raise MalformedRecordError("the outcome of the job's turn is another job's")
    return _phase(folder.decision.verdict, outcome.end, folder.success, folder.failure)


def readable_phase(store: Store, job: Job) -> JobPhase | None:
    """Read a job's phase; None if its markers contradict each other: then no process changes anything."""
    try:
        return phase(store, job)
    except MalformedRecordError:
        return None


def outcome_of(store: Store, job: Job) -> Outcome:
    """Return the outcome of the turn that the job's decision names. Source: `JobFolder.outcome`."""
    decision = store.folders[job].decision
    if decision.verdict is not Verdict.COMMIT or decision.turn > len(store.turns):
        return NO_OUTCOME
    return store.turns[decision.turn - 1].outcome


@cache
def _phase(verdict: Verdict, end: End, success: bool, failure: bool) -> JobPhase:
    decision = outcome = None
    if verdict is not Verdict.NONE:
        decision = Decision(
            job_id=_JOB,
            verdict="commit" if verdict is Verdict.COMMIT else "abort",
            token=Token("token"),
            stamp=Stamp(),
            decided_s=0.0,
            decided_by="",
        )
    if end is not End.NONE:
        outcome = OutcomeRecord(job_id=_JOB, turn=1, verdict=end.name.lower(), decided_s=0.0)  # type: ignore[arg-type]
    committed = Ended(job_id=_JOB, ended="committed", ended_s=0.0) if success else None
    failed = Ended(job_id=_JOB, ended="failed", ended_s=0.0) if failure else None
    return phase_of(decision, outcome, committed, failed)


@cache
def recovery_actions(
    found: JobPhase, policies: tuple[OnLapse, ...], *, calm: bool
) -> frozenset[RecoveryAction]:
    """Return the possible actions of recovery: it may meet any lease and age unless the world is calm."""
    leases = LEFT_ALONE if calm else JobLeaseState
    return frozenset(
        choose_action(found, lease, on_lapse=on_lapse, is_young=partial(bool, young))[0]
        for lease, young, on_lapse in product(leases, (True, False), policies)
    )
