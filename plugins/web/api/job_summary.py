"""Plain sentences about where a job stands, what follows, and what a person may do."""

from __future__ import annotations

from typing import Final, Literal

from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.job_state import JobState
from lockgate.plugins.web.api.jobs import Needs, needs_of
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.leases.registration import PHASES
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction, choose_action
from lockgate.storage_core.journal import LeaseState


class Possible(Model):
    """An action that is offered for a job.

    Attributes:
        is_allowed: Whether the protocol allows it now; whether the user may do it is asked elsewhere.
        text: What it will do; or, if it is not allowed, why not.
    """

    action: Literal["recover", "abort"]
    is_allowed: bool
    text: str


def summary(state: JobState) -> str:
    """Return where the job stands and what follows, in one to three sentences."""
    sentences = _sentences(state)
    if state.records is None:
        sentences = [
            f"The store does not answer; this is what the journal knew{_changed(state)}.",
            *sentences,
        ]
    return " ".join(filter(None, sentences))


def needs(state: JobState) -> tuple[Needs, str]:
    """Return what the job needs, and why in one sentence, as the list of jobs says it."""
    if state.is_partly_deleted:
        return "nothing", ""
    if state.phase is None:
        return "you", "Its records cannot be read, so nothing is done with it."
    attention = "quarantined" if state.phase is JobPhase.QUARANTINED else None
    if state.phase is JobPhase.FAILED and state.has_left_uploads:
        attention = "uploads left"
    return needs_of(PHASES[state.phase], _LEASES.get(state.lease), attention)


_LEASES: Final[dict[JobLeaseState | None, LeaseState]] = {
    JobLeaseState.LIVE: LeaseState.HELD,
    JobLeaseState.SUSPENDED: LeaseState.SUSPENDED,
    JobLeaseState.OVERDUE: LeaseState.SOFT,
    JobLeaseState.LAPSED: LeaseState.HARD,
}
"""A lease in a job's folder, as the journal would say it."""


def actions(state: JobState) -> tuple[Possible, ...]:
    """Return the actions, each with what it will do, or why it is not allowed."""
    return (_recover(state), _abort(state))


def _changed(state: JobState) -> str:
    return "" if state.registered is None else state.at(state.registered.changed_s)


def _sentences(state: JobState) -> list[str]:  # noqa: PLR0911 - one for each phase
    decided, ended = state.at(state.decided_s), state.at(state.ended_s)
    reason = f" ({state.reason})" if state.reason else ""
    if state.is_partly_deleted:
        return [
            "The folder of this old job is partly deleted.",
            "A sweep deletes the rest.",
        ]
    match state.phase:
        case None:
            return [
                "Records of this job cannot be read, so nothing is done with it.",
                "Restore them from a version or a backup of the store, or set the job aside: "
                "`lockgate jobs quarantine`.",
            ]
        case JobPhase.OPEN:
            return _open_sentences(state)
        case JobPhase.DECIDED:
            return [
                f"Decided{decided}.",
                *_driver(state, "finish it"),
                "Nothing is visible until all of it is.",
            ]
        case JobPhase.PUBLISHED:
            return [
                f"Published{state.at(state.published_s)}: its files are visible.",
                "Replaced files and markers remain to be handled.",
                *_driver(state, "finish it"),
            ]
        case JobPhase.REVERTING:
            return [
                f"Its commit was not published{reason}.",
                "Its files are being removed.",
                *_driver(state, "finish that"),
            ]
        case JobPhase.ABORTING:
            return [
                f"Decided{decided} to abort{reason}.",
                *_driver(state, "finish that"),
                "Nothing of it is visible.",
            ]
        case JobPhase.QUARANTINED:
            return [
                f"Set aside{decided}{reason}: it publishes nothing, and nothing of it is deleted.",
                "Its name is free for a new run.",
                "Press Abort to delete what it wrote.",
            ]
        case JobPhase.COMMITTED:
            return [
                f"Committed{ended}.",
                f"Its files are visible since it was published{state.at(state.published_s)}.",
            ]
        case JobPhase.FAILED:
            left = (
                ["Some of its uploads could not be aborted: press Recover to try again."]
                if state.has_left_uploads
                else []
            )
            return [f"Ended without a publication{ended}{reason}.", "Nothing of it is visible.", *left]


def _open_sentences(state: JobState) -> list[str]:
    begun = f"Set up{state.at(state.created_s)}; nothing is visible yet."
    will = "commit it if all its tasks have committed" if state.on_lapse == "resume" else "abort it"
    match state.lease:
        case JobLeaseState.LIVE if state.is_recovering:
            return [begun, "A recovery is at work on it."]
        case JobLeaseState.LIVE:
            return [begun, "Its driver holds its lease.", state.progress]
        case JobLeaseState.SUSPENDED:
            return [
                begun,
                "Its tasks are writing, or its next step has not begun.",
                f"That step must begin before{_until(state)}.",
                state.progress,
            ]
        case JobLeaseState.OVERDUE:
            return [
                begun,
                f"The driver has not renewed its lease, which ended{state.at(state.lease_until_s)}.",
                _recovery(state, will),
            ]
        case JobLeaseState.LAPSED:
            return [begun, "The driver is gone before it decided.", _recovery(state, will)]
        case _:
            return [begun, "Its lease cannot be read here: recovery leaves it alone until it is old."]


def _until(state: JobState) -> str:
    return state.at(state.lease_until_s).removeprefix(" at").replace(" on ", " ") or " its deadline"


def _driver(state: JobState, what: str) -> list[str]:
    match state.lease:
        case JobLeaseState.LIVE if state.is_recovering:
            return [f"A recovery is at work to {what}."]
        case JobLeaseState.LIVE | JobLeaseState.SUSPENDED:
            return [f"Its driver holds its lease and will {what}."]
        case JobLeaseState.OVERDUE:
            return [
                f"The driver has not renewed its lease, which ended{state.at(state.lease_until_s)}.",
                _recovery(state, what),
            ]
        case JobLeaseState.LAPSED:
            return ["The driver died.", _recovery(state, what)]
        case _:
            return [_recovery(state, what)]


def _recovery(state: JobState, what: str) -> str:
    interval_s = 60 * state.recovery_minutes
    due_s = None if state.lease_until_s is None else state.lease_until_s + interval_s
    if due_s is not None and due_s < state.now_s:
        every = f"every {state.recovery_minutes:g} minutes"
        return f"Recovery should run {every} and has not come: press Recover to {what}."
    by = (
        f" by{state.at(due_s).removeprefix(' at').replace(' on ', ' ')}"
        if due_s is not None
        else " at its next run"
    )
    return f"Recovery will {what}{by}, or press Recover."


def _recover(state: JobState) -> Possible:
    phase, lease = state.phase, state.lease
    if phase is None or state.is_partly_deleted:
        return _not("recover", "Its records cannot be read, so recovery changes nothing.")
    if phase in TERMINAL:
        if state.has_left_uploads or lease is not None:
            return Possible(
                action="recover",
                is_allowed=True,
                text="Deletes what the ended job left: uploads and records of its tasks.",
            )
        return _not("recover", "It has ended, and nothing is left to do.")
    if phase is JobPhase.OPEN and lease in {None, JobLeaseState.UNKNOWN}:
        return Possible(
            action="recover",
            is_allowed=True,
            text="Acts only if everything of the job is old, because its lease cannot be read here.",
        )
    seen = JobLeaseState.LAPSED if lease is JobLeaseState.OVERDUE else lease or JobLeaseState.UNKNOWN
    action, why = choose_action(phase, seen, on_lapse=state.on_lapse, is_young=lambda: True)
    if action is RecoveryAction.LEAVE:
        return _not("recover", f"Recovery leaves it alone: {why}.")
    watch = (
        "Watches its lease first, and leaves the job alone if it is renewed. "
        if lease is JobLeaseState.OVERDUE and phase is JobPhase.OPEN
        else ""
    )
    return Possible(action="recover", is_allowed=True, text=watch + _WILL[phase, action])


_WILL: Final = {
    (JobPhase.OPEN, RecoveryAction.ABORT): "Decides to abort the job, and deletes everything that it wrote.",
    (
        JobPhase.OPEN,
        RecoveryAction.RESUME,
    ): "Commits the job if all its tasks have committed; otherwise its driver must run again.",
    (
        JobPhase.DECIDED,
        RecoveryAction.ROLL_FORWARD,
    ): "Completes the remaining files, publishes all of them at once, and ends the job.",
    (
        JobPhase.PUBLISHED,
        RecoveryAction.ROLL_FORWARD,
    ): "Removes the replaced files, writes the markers, and ends the job.",
    (
        JobPhase.REVERTING,
        RecoveryAction.ROLL_FORWARD,
    ): "Removes the files of the commit that was not published, and ends the job.",
    (JobPhase.ABORTING, RecoveryAction.ROLL_FORWARD): "Deletes the rest of what the job wrote, and ends it.",
}


def _abort(state: JobState) -> Possible:
    if state.phase is not None and state.is_partly_deleted:
        return _not("abort", "It is partly deleted.")
    if state.phase in _NO_ABORT:
        why = _NO_ABORT[state.phase]
        return _not("abort", why.format(decided=state.at(state.decided_s), ended=state.at(state.ended_s)))
    text = "Decides to abort the job, and deletes everything that it wrote."
    if state.phase is JobPhase.QUARANTINED:
        text = "Deletes everything that the job wrote, and ends it."
    elif state.lease is JobLeaseState.LIVE:
        text += " Its driver, which holds its lease, stops at its next step."
    return Possible(action="abort", is_allowed=True, text=text)


_FORWARD: Final = "Its commit was decided{decided} and can only go forward; Recover finishes it."
_NO_ABORT: Final[dict[JobPhase | None, str]] = {
    None: "It cannot be read whether its commit is decided, so it must not be aborted.",
    JobPhase.ABORTING: "It is being aborted already; Recover finishes that.",
    JobPhase.DECIDED: _FORWARD,
    JobPhase.PUBLISHED: _FORWARD,
    JobPhase.REVERTING: "Its commit is being reverted already; Recover finishes that.",
    JobPhase.COMMITTED: "It has ended{ended}.",
    JobPhase.FAILED: "It has ended{ended}.",
}
"""Why a job in a phase is not aborted."""


def _not(action: Literal["recover", "abort"], why: str) -> Possible:
    return Possible(action=action, is_allowed=False, text=why)
