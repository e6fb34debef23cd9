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
    return tuple(_steps(state))


def _steps(state: JobState) -> Iterator[Step]:
    phase, tasks = state.phase, state.tasks
    record = state.records and state.records.record
    yield Step(
        name="set up",
        state="done" if state.created_s is not None else "failed",
        at_s=state.created_s,
        text=f"The job was set up{state.at(state.created_s)}{f' by {record.created_by}' if record else ''}.",
    )
    is_open = phase is JobPhase.OPEN
    is_whole = tasks is not None and tasks.expected is not None and tasks.committed >= tasks.expected
    is_writing = is_open and not is_whole
    yield Step(
        name="writing",
        state="now" if is_writing else "done" if phase is not None else "todo",
        at_s=None,
        text="Its tasks write files that are not visible yet."
        if is_open
        else "No task writes for it any more.",
    )
    yield Step(
        name="committed tasks",
        state="todo"
        if is_writing or phase is None
        else "done"
        if is_open or phase in _FORWARD
        else "skipped",
        at_s=None,
        text=state.progress or "The numbers of its tasks are not known.",
    )
    yield _audited(state)
    yield _decided(state)
    yield _published(state)
    yield _ended(state)


def _audited(state: JobState) -> Step:
    audit = state.records and state.records.audit
    record = state.records and state.records.record
    if audit:
        verdict = "passed" if audit.passed else "failed"
        return Step(
            name="audited",
            state="done" if audit.passed else "failed",
            at_s=audit.decided_s,
            text=f"The audit {verdict}{state.at(audit.decided_s)}.",
        )
    if record and not record.spec.audit:
        return Step(name="audited", state="skipped", at_s=None, text="No audit was required.")
    if state.phase is JobPhase.OPEN:
        required = (
            "An audit is required before the commit."
            if record
            else "It is not known whether an audit is required."
        )
        return Step(name="audited", state="todo", at_s=None, text=required)
    return Step(name="audited", state="skipped", at_s=None, text="No verdict of an audit is known.")


def _decided(state: JobState) -> Step:
    decided_s, when = state.decided_s, state.at(state.decided_s)
    decision = state.records and state.records.decision
    verdict = decision.verdict if decision else None

    def step(condition: State, text: str) -> Step:
        return Step(name="decided", state=condition, at_s=decided_s, text=text)

    reason = f": {decision.reason}" if decision and decision.reason else ""
    if verdict == "commit" or (verdict is None and state.phase in _FORWARD):
        return step("done", f"The commit was decided{when}; from then on the job can only go forward.")
    if verdict == "quarantined":
        return step("failed", f"An operator set the job aside{when}{reason}.")
    if verdict == "abort" or state.phase is JobPhase.ABORTING:
        return step("failed", f"It was decided{when} to abort the job{reason}.")
    if state.phase is JobPhase.OPEN:
        return step("todo", "Not decided: everything can still be undone.")
    return step(
        "failed", "It cannot be read what was decided." if state.phase is None else "It was not committed."
    )


def _published(state: JobState) -> Step:
    outcome = state.records and state.records.outcome
    text, condition = _PUBLISHED.get(state.phase, _PUBLISHED[None])
    if outcome and outcome.verdict != "published":
        text = f"Not published{state.at(outcome.decided_s)}{f': {outcome.reason}' if outcome.reason else ''}."
    elif state.published_s is not None:
        text = f"All files became visible at once{state.at(state.published_s)}, to readers of the manifest."
    return Step(name="published", state=condition, at_s=state.published_s, text=text)


_PUBLISHED: Final[dict[JobPhase | None, tuple[str, State]]] = {
    None: ("It is not known.", "todo"),
    JobPhase.OPEN: ("Nothing is visible yet.", "todo"),
    JobPhase.DECIDED: ("Its files are being completed; they become visible at once.", "now"),
    JobPhase.PUBLISHED: ("All files are visible.", "done"),
    JobPhase.COMMITTED: ("All files are visible.", "done"),
    JobPhase.REVERTING: ("Its files are being removed.", "failed"),
    JobPhase.ABORTING: ("Nothing of it was published.", "skipped"),
    JobPhase.QUARANTINED: ("Nothing of it was published.", "skipped"),
    JobPhase.FAILED: ("Nothing of it was published.", "skipped"),
}


def _ended(state: JobState) -> Step:
    ended_s, when = state.ended_s, state.at(state.ended_s)
    match state.phase:
        case JobPhase.COMMITTED:
            return Step(name="ended", state="done", at_s=ended_s, text=f"Committed{when}.")
        case JobPhase.FAILED:
            return Step(
                name="ended", state="failed", at_s=ended_s, text=f"Ended without a publication{when}."
            )
        case JobPhase.PUBLISHED | JobPhase.REVERTING | JobPhase.ABORTING:
            return Step(name="ended", state="now", at_s=None, text="What is left over is being cleaned up.")
        case _:
            return Step(name="ended", state="todo", at_s=None, text="It has not ended.")
