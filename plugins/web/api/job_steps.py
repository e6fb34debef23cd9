"""The seven steps of a job: set up, writing, committed tasks, audited, decided, published, ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.job_state import JobState
from lockgate.storage_core.commit.records.phase import JobPhase

State = Literal["done", "now", "todo", "failed", "skipped"]


class Step(Model):
    """One step of a job: set up, writing, committed tasks, audited, decided, published, ended.

    Attributes:
        state: `done`, `now`, `todo`, `failed`, or `skipped` (no audit was required).
        at_s: When it was done, if it is known.
        text: One sentence for a person who has never seen Lockgate.
    """

    name: str
    state: State
    at_s: float | None
    text: str


_FORWARD: Final = frozenset({JobPhase.DECIDED, JobPhase.PUBLISHED, JobPhase.COMMITTED})


def steps(state: JobState) -> tuple[Step, ...]:
    """Return the seven steps of the job, in order."""
    found = (
        _set_up(state),
        *_tasks(state),
        _audited(state),
        _decided(state),
        _published(state),
        _ended(state),
    )
    return tuple(found)


def _step(name: str, condition: State, text: str, at_s: float | None = None) -> Step:
    return Step(name=name, state=condition, at_s=at_s, text=text)


def _set_up(state: JobState) -> Step:
    record = state.records and state.records.record
    by = f" by {record.created_by}" if record else ""
    condition: State = "failed" if state.created_s is None else "done"
    return _step("set up", condition, f"The job was set up{state.at(state.created_s)}{by}.", state.created_s)


def _tasks(state: JobState) -> Iterator[Step]:
    """Yield the steps of writing and of committed tasks."""
    progress = state.progress or "How many of its tasks have committed is not known here."
    if state.phase is JobPhase.OPEN:
        tasks = state.tasks
        is_whole = tasks is not None and tasks.expected is not None and tasks.committed >= tasks.expected
        text = "Its tasks write files that are not visible yet."
        yield _step("writing", "done" if is_whole else "now", text)
        yield _step("committed tasks", "done" if is_whole else "todo", progress)
        return
    is_known = state.phase is not None
    yield _step("writing", "done" if is_known else "todo", "What a task still writes is not part of it.")
    ended: State = "done" if state.phase in _FORWARD else "skipped"
    yield _step("committed tasks", ended if is_known else "todo", progress)


def _audited(state: JobState) -> Step:
    audit = state.records and state.records.audit
    record = state.records and state.records.record
    if audit:
        text = f"The audit {'passed' if audit.passed else 'failed'}{state.at(audit.decided_s)}."
        return _step("audited", "done" if audit.passed else "failed", text, audit.decided_s)
    if record and not record.spec.audit:
        return _step("audited", "skipped", "No audit was required.")
    if state.phase is not JobPhase.OPEN:
        return _step("audited", "skipped", "No verdict of an audit is known.")
    if record:
        return _step("audited", "todo", "An audit is required before the commit.")
    return _step("audited", "todo", "It is not known whether an audit is required.")


def _decided(state: JobState) -> Step:
    at_s, when = state.decided_s, state.at(state.decided_s)
    decision = state.records and state.records.decision
    verdict = decision.verdict if decision else None
    reason = f": {decision.reason}" if decision and decision.reason else ""
    if verdict == "commit" or (verdict is None and state.phase in _FORWARD):
        text = f"The commit was decided{when}; from then on the job can only go forward."
        return _step("decided", "done", text, at_s)
    if verdict == "quarantined":
        return _step("decided", "failed", f"An operator set the job aside{when}{reason}.", at_s)
    if verdict == "abort" or state.phase is JobPhase.ABORTING:
        return _step("decided", "failed", f"It was decided{when} to abort the job{reason}.", at_s)
    if state.phase is JobPhase.OPEN:
        return _step("decided", "todo", "Not decided: everything can still be undone.")
    if state.phase is None:
        return _step("decided", "failed", "It cannot be read what was decided.", at_s)
    return _step("decided", "failed", "It was not committed.", at_s)


def _published(state: JobState) -> Step:
    outcome = state.records and state.records.outcome
    text, condition = _PUBLISHED[state.phase]
    if outcome and outcome.verdict != "published":
        text = f"Not published{state.at(outcome.decided_s)}{f': {outcome.reason}' if outcome.reason else ''}."
    elif state.published_s is not None:
        text = f"All files became visible at once{state.at(state.published_s)}, to readers of the manifest."
    return _step("published", condition, text, state.published_s)


_PUBLISHED: Final[dict[JobPhase | None, tuple[str, State]]] = {
    None: ("It is not known.", "todo"),
    JobPhase.OPEN: ("Nothing is visible yet.", "todo"),
    JobPhase.DECIDED: (
        "Its files remain to be completed; then readers of the manifest see all of them at once.",
        "now",
    ),
    JobPhase.PUBLISHED: ("All files are visible.", "done"),
    JobPhase.COMMITTED: ("All files are visible.", "done"),
    JobPhase.REVERTING: ("Its files remain to be removed.", "failed"),
    JobPhase.ABORTING: ("Nothing of it was published.", "skipped"),
    JobPhase.QUARANTINED: ("Nothing of it was published.", "skipped"),
    JobPhase.FAILED: ("Nothing of it was published.", "skipped"),
}


def _ended(state: JobState) -> Step:
    when = state.at(state.ended_s)
    match state.phase:
        case JobPhase.COMMITTED:
            return _step("ended", "done", f"Committed{when}.", state.ended_s)
        case JobPhase.FAILED:
            return _step("ended", "failed", f"Ended without a publication{when}.", state.ended_s)
        case JobPhase.PUBLISHED | JobPhase.REVERTING | JobPhase.ABORTING:
            return _step("ended", "now", "What is left over remains to be cleaned up.")
    return _step("ended", "todo", "It has not ended.")
