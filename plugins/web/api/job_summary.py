"""Plain sentences about where a job stands, what follows, and what a person may do."""

from __future__ import annotations

from typing import Final, Literal

from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.job_state import JobState
from lockgate.storage_core.commit.leases.job_lease import JobLeaseState
from lockgate.storage_core.commit.leases.registration import PHASES
from lockgate.storage_core.commit.records.phase import TERMINAL, JobPhase
from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction, choose_action
from lockgate.storage_core.commit.registry.needs import Needs, needs_of
from lockgate.storage_core.commit.registry.rows import UNDELETED_FILES, UPLOADS_LEFT
from lockgate.storage_core.journal import LeaseState

_PARTLY_DELETED: Final = "The folder of this old job is partly deleted. A sweep deletes the rest."

# `{driver}` says what its driver or recovery does next, `{decided}` is ` at 03:12 UTC`, `{reason}` ` (why)`.
_STANDS: Final[dict[JobPhase | None, str]] = {
    None: "Records of this job cannot be read, so nothing is done with it. Restore them from a version or a "
    "backup of the store, or set the job aside: `lockgate jobs quarantine`.",
    JobPhase.OPEN: "Set up{created}; nothing is visible yet. {driver}",
    JobPhase.DECIDED: "Decided{decided}. {driver} Readers of the manifest will see all of it at once; "
    "readers that list see each file as soon as it is complete.",
    JobPhase.PUBLISHED: "Published{published}: its files are visible. Replaced files and markers remain to "
    "be handled. {driver}",
    JobPhase.REVERTING: "Its commit was not published{reason}. Its files remain to be removed. {driver}",
    JobPhase.ABORTING: "Decided{decided} to abort{reason}. {driver} Nothing of it is visible.",
    JobPhase.QUARANTINED: "Set aside{decided}{reason}: it publishes nothing, and nothing of it is deleted. "
    "Its name is free for a new run. Press Abort to delete what it wrote.",
    JobPhase.COMMITTED: "Committed{ended}. Its files are visible since it was published{published}."
    "{undeleted}",
    JobPhase.FAILED: "Ended without a publication{ended}{reason}. Nothing of it is visible.{left}",
}
_OPEN: Final[dict[JobLeaseState | None, str]] = {
    JobLeaseState.LIVE: "Its driver holds its lease. {progress}",
    JobLeaseState.SUSPENDED: "Its tasks are writing, or its next step has not begun. That step must begin "
    "before{deadline}. {progress}",
    JobLeaseState.OVERDUE: "The driver has not renewed its lease, which ended{until}. {recovery}",
    JobLeaseState.LAPSED: "The driver is gone before it decided. {recovery}",
}
_OPEN_WITHOUT: Final = "Its lease cannot be read here: recovery leaves it alone until it is old."
_DECIDED: Final[dict[JobLeaseState | None, str]] = {
    JobLeaseState.LIVE: "Its driver holds its lease and will {what}.",
    JobLeaseState.SUSPENDED: "Its driver holds its lease and will {what}.",
    JobLeaseState.OVERDUE: "The driver has not renewed its lease, which ended{until}. {recovery}",
    JobLeaseState.LAPSED: "The driver died. {recovery}",
}
_DECIDED_WITHOUT: Final = "{recovery}"

_LEASES: Final[dict[JobLeaseState | None, LeaseState]] = {
    JobLeaseState.LIVE: LeaseState.HELD,
    JobLeaseState.SUSPENDED: LeaseState.SUSPENDED,
    JobLeaseState.OVERDUE: LeaseState.SOFT,
    JobLeaseState.LAPSED: LeaseState.HARD,
}
"""A lease in a job's folder, as the journal would say it."""


class Possible(Model):
    """An action that is offered for a job.

    Attributes:
        is_allowed: Whether the protocol allows it now; whether the user may do it is asked elsewhere.
        text: What it will do; or, if it is not allowed, why not.
        href: Address where what stops it is put right, if it is not allowed for that reason.
    """

    action: Literal["recover", "abort"]
    is_allowed: bool
    text: str
    href: str | None = None


def summary(state: JobState) -> str:
    """Return where the job stands and what follows, in a few sentences."""
    stands = _PARTLY_DELETED if state.is_partly_deleted else _STANDS[state.phase]
    text = stands.format(
        created=state.at(state.created_s),
        decided=state.at(state.decided_s),
        published=state.at(state.published_s),
        ended=state.at(state.ended_s),
        reason=f" ({state.reason})" if state.reason else "",
        driver=_driver(state),
        left=" Some of its uploads could not be aborted: press Recover to try again."
        if state.left("left")
        else "",
        undeleted=f" The store refuses to delete {state.left('undeleted')} of the files that it replaced: "
        "programs that list the destination see old and new rows. Recovery tries again."
        if state.left("undeleted")
        else "",
    ).strip()
    if state.records is not None or state.registered is None:
        return text
    known = state.at(state.registered.changed_s)
    return f"The store does not answer; this is what the journal knew{known}. {text}"


def _driver(state: JobState) -> str:
    """Return what the driver or recovery does next."""
    is_open = state.phase is JobPhase.OPEN
    what = "finish it" if state.phase in {JobPhase.DECIDED, JobPhase.PUBLISHED} else "finish that"
    if is_open:
        what = "commit it if all its tasks have committed" if state.on_lapse == "resume" else "abort it"
    if state.lease is JobLeaseState.LIVE and state.is_recovering:
        return "A recovery is at work on it."
    words = _OPEN.get(state.lease, _OPEN_WITHOUT) if is_open else _DECIDED.get(state.lease, _DECIDED_WITHOUT)
    return words.format(
        what=what,
        until=state.at(state.lease_until_s),
        deadline=_moment(state.at(state.lease_until_s)) or " its deadline",
        progress=state.progress,
        recovery=_recovery(state, what),
    ).strip()


def _recovery(state: JobState, what: str) -> str:
    """Return when recovery comes, and what it does then."""
    if state.stopped is not None:
        return f"Nothing will {what} now, because {state.stopped.why}."
    due_s = None if state.lease_until_s is None else state.lease_until_s + 60 * state.recovery_minutes
    if due_s is None:
        return f"Recovery will {what} at its next run, or press Recover."
    if due_s < state.now_s:
        every = f"every {state.recovery_minutes:g} minutes"
        return f"Recovery should run {every} and has not come: press Recover to {what}."
    return f"Recovery will {what} by{_moment(state.at(due_s))}, or press Recover."


def _moment(at: str) -> str:
    """Return ` 03:12 UTC` for ` at 03:12 UTC`, to follow another preposition."""
    return at.removeprefix(" at").replace(" on ", " ")


def needs(state: JobState) -> tuple[Needs, str]:
    """Return what the job needs, and why in one sentence, as the list of jobs says it."""
    if state.is_partly_deleted:
        return "nothing", ""
    if state.phase is None:
        return "you", "Its records cannot be read, so nothing is done with it."
    attention = "quarantined" if state.phase is JobPhase.QUARANTINED else None
    if state.phase is JobPhase.FAILED and state.left("left"):
        attention = UPLOADS_LEFT
    if state.phase is JobPhase.COMMITTED and state.left("undeleted"):
        attention = UNDELETED_FILES
    return needs_of(PHASES[state.phase], _LEASES.get(state.lease), attention)


def actions(state: JobState) -> tuple[Possible, ...]:
    """Return the actions, each with what it will do, or why it is not allowed."""
    found = (_recover(state), _abort(state))
    if state.stopped is None:
        return found
    why, href = state.stopped
    return tuple(
        Possible(action=each.action, is_allowed=False, text=f"{why}.", href=href) if each.is_allowed else each
        for each in found
    )


def _recover(state: JobState) -> Possible:
    phase, lease = state.phase, state.lease
    if phase is None or state.is_partly_deleted:
        return _not("recover", "Its records cannot be read, so recovery changes nothing.")
    if phase in TERMINAL:
        if lease is None:
            return _not("recover", "It has ended, and nothing is left to do.")
        return _may("recover", "Deletes what the ended job left: uploads, replaced files and task records.")
    if phase is JobPhase.OPEN and lease in {None, JobLeaseState.UNKNOWN}:
        why = "because its lease cannot be read here"
        return _may("recover", f"Acts only if everything of the job is old, {why}.")
    seen = JobLeaseState.LAPSED if lease is JobLeaseState.OVERDUE else lease or JobLeaseState.UNKNOWN
    action, reason = choose_action(phase, seen, on_lapse=state.on_lapse, is_young=lambda: True)
    if action is RecoveryAction.LEAVE:
        return _not("recover", f"Recovery leaves it alone: {reason}.")
    will = _RESUME if action is RecoveryAction.RESUME else _WILL[phase]
    if lease is JobLeaseState.OVERDUE and phase is JobPhase.OPEN:
        will = f"Watches its lease first, and leaves the job alone if it is renewed. {will}"
    return _may("recover", will)


_RESUME: Final = "Commits the job if all its tasks have committed; otherwise its driver must run again."
_WILL: Final = {
    JobPhase.OPEN: "Decides to abort the job, and deletes everything that it wrote.",
    JobPhase.DECIDED: "Completes the remaining files, publishes all of them at once, and ends the job.",
    JobPhase.PUBLISHED: "Removes the replaced files, writes the markers, and ends the job.",
    JobPhase.REVERTING: "Removes the files of the commit that was not published, and ends the job.",
    JobPhase.ABORTING: "Deletes the rest of what the job wrote, and ends it.",
}
"""What recovery does with a job in a phase, unless it resumes it."""


def _abort(state: JobState) -> Possible:
    if state.phase is not None and state.is_partly_deleted:
        return _not("abort", "It is partly deleted.")
    if state.phase in _NO_ABORT:
        why = _NO_ABORT[state.phase]
        return _not("abort", why.format(decided=state.at(state.decided_s), ended=state.at(state.ended_s)))
    if state.phase is JobPhase.QUARANTINED:
        return _may("abort", "Deletes everything that the job wrote, and ends it.")
    stops = " Its driver, which holds its lease, stops at its next step."
    return _may("abort", _WILL[JobPhase.OPEN] + (stops if state.lease is JobLeaseState.LIVE else ""))


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


def _may(action: Literal["recover", "abort"], text: str) -> Possible:
    return Possible(action=action, is_allowed=True, text=text)


def _not(action: Literal["recover", "abort"], why: str) -> Possible:
    return Possible(action=action, is_allowed=False, text=why)
