"""The steps from the decision to the terminal marker: only forward, by any process.

Each function is one storage call of one process and yields its possible results.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockgate.storage_core.commit.records.phase import JobPhase
from tests.model.commit.committing import Move, first_look
from tests.model.commit.faults import lose_upload, overwrite_old
from tests.model.commit.phases import readable_phase
from tests.model.commit.rules import Rule, World
from tests.model.commit.state import IDLE, End, File, Job, Outcome, Process, Step, Store, put_file, put_folder


def roll(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Read the job's markers and take the step of its phase. Source: `_roll_forward`."""
    found = readable_phase(store, process.subject)
    if found is None:
        yield "reads markers that contradict each other, and stops", store, IDLE
        return
    if found is JobPhase.REVERTING and Rule.PASSED_REVERTS in world.dropped:
        found = _deaf_to_passing(store, process.subject)
    decided = process._replace(decision=store.folders[process.subject].decision)
    text = f"reads that it is {found}"
    match found:
        case JobPhase.DECIDED:
            yield text, store, _decided(world, decided)
        case JobPhase.PUBLISHED:
            yield text, store, decided._replace(step=Step.REMOVE)
        case JobPhase.REVERTING:
            yield text, store, take_back_first(world, decided)
        case JobPhase.ABORTING:
            yield text, store, decided._replace(step=Step.DROP, fails=True)
        case _:
            yield text, store, _done(world, process)


def _decided(world: World, process: Process) -> Process:
    if Rule.OUTCOME_BEFORE_DELETION in world.dropped:
        # Without the rule, the replaced files are removed first; `remove` continues with the completions.
        return process._replace(step=Step.REMOVE)
    if Rule.FILES_BEFORE_OUTCOME in world.dropped:
        # Without the rule, the outcome is written first; `resolve` ends with the deletions.
        return process._replace(step=Step.END_TURN)
    return process._replace(step=Step.COMPLETE)


def _deaf_to_passing(store: Store, job: Job) -> JobPhase:
    # Without the rule, the decision counts regardless of the turn's outcome.
    turn = store.turns[store.folders[job].decision.turn - 1]
    return JobPhase.PUBLISHED if turn.outcome.end is End.PASSED else JobPhase.REVERTING


def complete(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Complete one upload; an unclear response is resolved by a read. Source: `complete`."""
    resolving = process._replace(step=Step.RESOLVE)
    name = _name(process)
    if _file(store, process) is not File.PENDING:
        yield f"learns that the upload of {name} is gone", store, resolving
        return
    visible = put_file(store, process.subject, process.file, File.VISIBLE)
    yield f"completes {name}", visible, _next_file(world, store, process)
    yield f"completes {name}, answer lost", visible, resolving
    if not world.calm:
        fails = _next_file(world, store, process._replace(fails=True))
        yield f"is refused {name}, time and again", store, fails
        lost = lose_upload(store, process.subject, process.file)
        yield f"learns that the upload of {name} is lost for good", lost, resolving


def resolve(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Read whether the object exists: it is completed or lost permanently. Source: `Completions._resolve`."""
    name = _name(process)
    if _file(store, process) is File.VISIBLE:
        yield f"reads that {name} stands", store, _next_file(world, store, process)
    else:
        yield f"finds {name} lost", store, _next_file(world, store, process._replace(fails=True))


def _next_file(world: World, store: Store, process: Process) -> Process:
    if process.file + 1 < len(store.folders[process.subject].files):
        return process._replace(step=Step.COMPLETE, file=process.file + 1)
    following = process._replace(step=Step.END_TURN, file=0)
    if following.fails and Rule.OUTCOME_BEFORE_REVERT in world.dropped:
        # Without the rule, a process that finds a lost file reverts the others immediately.
        return take_back_first(world, following)
    if Rule.FILES_BEFORE_OUTCOME in world.dropped:
        return following._replace(step=Step.REMOVE, fails=False)
    return following


def end_turn(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Create the turn's outcome if absent, and follow the stored one. Source: `publish`."""
    number = process.decision.turn
    turn = store.turns[number - 1]
    mine = End.REVERTED if process.fails else End.PUBLISHED
    if turn.ended and Rule.OUTCOME_IF_ABSENT not in world.dropped:
        standing = turn.outcome.end
        if Rule.LOSERS_FOLLOW_THE_OUTCOME in world.dropped:
            # Without the rule, it continues as if its own outcome had been stored.
            standing = mine
        if standing is End.PASSED and Rule.PASSED_REVERTS in world.dropped:
            standing = End.PUBLISHED
        yield f"finds turn {number} {standing.name.lower()}", store, _after_outcome(world, process, standing)
        return
    ended = turn._replace(outcome=Outcome(mine, process.subject, process.decision))
    written = store._replace(turns=(*store.turns[: number - 1], ended, *store.turns[number:]))
    text = f"ends turn {number}: {mine.name.lower()}"
    yield text, written, _after_outcome(world, process, mine)
    if Rule.UNKNOWN_IS_READ_BACK in world.dropped:
        # Without the rule, a missing response is treated as a refusal.
        yield f"{text}, answer lost", written, _after_outcome(world, process, End.REVERTED)
    else:
        yield f"{text}, answer lost", written, process


def _after_outcome(world: World, process: Process, end: End) -> Process:
    if end is not End.PUBLISHED:
        return take_back_first(world, process)
    if Rule.FILES_BEFORE_OUTCOME in world.dropped:
        return process._replace(step=Step.COMPLETE, fails=False)
    step = Step.REMOVE if Rule.OUTCOME_BEFORE_DELETION not in world.dropped else Step.DROP
    return process._replace(step=step, fails=False)


def remove(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Delete one replaced file if it still has the planned version. Source: `remove_replaced`."""
    made = process.decision
    if process.file == 0:
        yield from _remove_old(world, store, process)
    elif made.takes_other and process.file <= len(store.folders[process.subject.other].files):
        other = process._replace(subject=process.subject.other, file=process.file - 1)
        taken = (
            put_file(store, other.subject, other.file, File.GONE)
            if _file(store, other) is File.VISIBLE
            else store
        )
        following = _next_removal(world, store, process)
        yield f"deletes replaced {_name(other)}", taken, following
        if taken is not store:
            yield f"deletes replaced {_name(other)}, answer lost", taken, process


def _remove_old(world: World, store: Store, process: Process) -> Iterator[Move]:
    planned = process.decision.takes_old
    following = _next_removal(world, store, process)
    if not planned:
        yield "has no old file to delete", store, following
        return
    # Without the rule, any object at the key is deleted.
    takes_all = Rule.DELETION_BY_VERSION in world.dropped and store.old > 0
    if store.old == planned or takes_all:
        gone = store._replace(old=-store.old)
        yield f"deletes the old file v{store.old}", gone, following
        yield f"deletes the old file v{store.old}, answer lost", gone, process
    else:
        yield "keeps the old file: it changed, or is gone", store, following
    if store.old == 1 and not world.calm:
        yield "is about to delete the old file when a stranger overwrites it", overwrite_old(store), process


def _next_removal(world: World, store: Store, process: Process) -> Process:
    others = len(store.folders[process.subject.other].files) if process.decision.takes_other else 0
    if process.file < others:
        return process._replace(file=process.file + 1)
    if Rule.OUTCOME_BEFORE_DELETION in world.dropped:
        return process._replace(step=Step.COMPLETE, file=0)
    return process._replace(step=Step.DROP, file=0)


def take_back_first(world: World, process: Process) -> Process:
    """Return the process that begins to revert a job."""
    if Rule.REVERT_BEFORE_MARKER in world.dropped:
        # Without the rule, the marker is written first.
        return process._replace(step=Step.END, file=0, fails=True)
    # Without the rule, objects are reverted before uploads.
    step = Step.ABORT_UPLOAD if Rule.UPLOADS_BEFORE_FILES not in world.dropped else Step.TAKE_BACK
    return process._replace(step=step, file=0, fails=True)


def abort_upload(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Abort one upload of the plan. Source: `revert_plan`, its first pass."""
    aborted = (
        put_file(store, process.subject, process.file, File.GONE)
        if _file(store, process) is File.PENDING
        else store
    )
    last = Step.TAKE_BACK if Rule.UPLOADS_BEFORE_FILES not in world.dropped else Step.DROP
    following = _next_back(store, process, last)
    yield f"aborts the upload of {_name(process)}", aborted, following
    if aborted is not store:
        yield f"aborts the upload of {_name(process)}, answer lost", aborted, process


def take_back(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Delete one object if it belongs to the job. Source: `_revert_file`."""
    last = Step.DROP if Rule.UPLOADS_BEFORE_FILES not in world.dropped else Step.ABORT_UPLOAD
    following = _next_back(store, process, last)
    if _file(store, process) is not File.VISIBLE:
        yield f"finds no object {_name(process)}", store, following
        return
    taken = put_file(store, process.subject, process.file, File.GONE)
    yield f"takes {_name(process)} back", taken, following
    yield f"takes {_name(process)} back, answer lost", taken, process


def _next_back(store: Store, process: Process, last: Step) -> Process:
    if process.file + 1 < len(store.folders[process.subject].files):
        return process._replace(file=process.file + 1)
    return process._replace(step=last, file=0)


def drop(_world: World, store: Store, process: Process) -> Iterator[Move]:
    """Abort the open uploads of the job one by one. Source: `drop_uploads`."""
    files = store.folders[process.subject].files
    if File.PENDING not in files:
        yield "finds no upload open", store, process._replace(step=Step.END, file=0)
        return
    dropping = process._replace(file=files.index(File.PENDING))
    yield (
        f"drops the upload of {_name(dropping)}",
        put_file(store, process.subject, dropping.file, File.GONE),
        process,
    )


def end(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Create the terminal marker if absent. Source: `finalization.end`."""
    folder = store.folders[process.subject]
    name = "COMMIT_FAIL" if process.fails else "COMMIT_SUCCESS"
    marked = folder._replace(failure=True) if process.fails else folder._replace(success=True)
    ended = put_folder(store, process.subject, marked)
    yield f"creates {name}", ended, _done(world, process)
    if ended.folders != store.folders:
        yield f"creates {name}, answer lost", ended, process


def _done(world: World, process: Process) -> Process:
    """Return to the process's own job."""
    return IDLE if process.subject == process.own else first_look(world, process.own)


def _file(store: Store, process: Process) -> File:
    return store.folders[process.subject].files[process.file]


def _name(process: Process) -> str:
    return f"{process.subject.name}'s file {process.file + 1}"
