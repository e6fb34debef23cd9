"""The steps up to the decision: the turn, the plan, and the race for `COMMIT_STARTED`.

Each function is one storage call of one process and yields its possible results. If the call creates
an object, one of the results is that it took effect and the response was lost: the process then retries,
like `claim`, and reads the existing object.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockgate.storage_core.commit.recovery.decision_table import RecoveryAction
from tests.model.commit.faults import lose_upload
from tests.model.commit.phases import readable_phase, recovery_actions
from tests.model.commit.rules import Role, Rule, World
from tests.model.commit.state import (
    ABORT,
    IDLE,
    Decision,
    End,
    File,
    Job,
    Outcome,
    Process,
    Step,
    Store,
    Turn,
    Verdict,
    put_folder,
)

Move = tuple[str, Store, Process]
"""What happened, and what stands and is in hand then."""


def begin(world: World, role: Role, store: Store) -> Iterator[Move]:
    """Open a job in order to commit it, and read its phase.

    Source: `JobCommit`.
    """
    if role.recovers:
        for job in Job:
            yield from _recover(world, store, job)
    elif role.commits is not None:
        job = role.commits
        undecided = store.folders[job].decision.verdict is Verdict.NONE
        yield "begins to commit", store, first_look(world, job) if undecided else follow(job, job)


def _recover(world: World, store: Store, job: Job) -> Iterator[Move]:
    """Read the phase of a job and act by the code's table. Source: `recover_job`, `_act`."""
    found = readable_phase(store, job)
    if found is None:
        return
    for action in recovery_actions(found, world.on_lapse[job], calm=world.calm):
        match action:
            case RecoveryAction.ABORT:
                yield "finds the job lapsed, to abort it", store, Process(Step.DECIDE_ABORT, job, job)
            case RecoveryAction.RESUME:
                yield "finds the job lapsed, to resume it", store, first_look(world, job)
            case RecoveryAction.ROLL_FORWARD:
                yield "finds the job decided", store, follow(job, job)
            case _:
                pass  # left alone; or ended, with nothing to clean up in the model


def first_look(world: World, job: Job) -> Process:
    """Return the process that begins to commit a job."""
    # Without the rule, the plan is made first.
    step = Step.LOOK if Rule.TURN_BEFORE_PLAN not in world.dropped else Step.PLAN
    return Process(step, job, job)


def follow(own: Job, subject: Job) -> Process:
    """Return the process that rolls a decided job forward."""
    return Process(Step.ROLL, own, subject)


def look(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Look at the highest turn. Source: `take_turn`, `DestinationLog.highest`."""
    number = len(store.turns)
    if number == 0 or store.turns[-1].ended:
        yield "finds no open turn", store, process._replace(step=Step.CLAIM, turn=number + 1)
    elif store.turns[-1].holder == process.own:
        yield f"goes on with turn {number}, its own", store, _in_turn(world, process, number)
    elif Rule.TURNS_END_FIRST in world.dropped:
        # Without the rule, the next turn is claimed although this one has no outcome.
        yield f"finds turn {number} open", store, process._replace(step=Step.CLAIM, turn=number + 1)
    else:
        held = process._replace(step=Step.READ_HOLDER, turn=number)
        yield f"finds turn {number} open, another job's", store, held


def read_holder(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Read the decision of the job that has the turn: help it, wait for it, or pass it.

    Source: `_end_turn`.
    """
    holder = store.turns[process.turn - 1].holder
    decision = store.folders[holder].decision
    passing = process._replace(step=Step.PASS)
    if decision.verdict is Verdict.NONE:
        yield "waits for the turn's holder", store, process._replace(step=Step.LOOK, turn=0)
        if not world.calm:
            yield "takes the turn's holder for gone", store, passing
    elif (decision.verdict, decision.turn) != (Verdict.COMMIT, process.turn):
        yield "finds the turn's holder decided otherwise", store, passing
    elif Rule.DECIDED_IS_HELPED in world.dropped:
        # Without the rule, it loses its turn like an undecided job.
        yield "does not care that the turn's holder is decided", store, passing
    else:
        yield "helps the turn's holder", store, follow(process.own, holder)


def pass_turn(_world: World, store: Store, process: Process) -> Iterator[Move]:
    """Create the outcome `passed` if absent. Source: `pass_turn`."""
    passed = _passed(store, process.turn)
    done = process._replace(step=Step.LOOK, turn=0)
    yield f"passes turn {process.turn}", passed, done
    if passed is not store:
        yield f"passes turn {process.turn}, answer lost", passed, process


def claim_turn(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Create the turn's claim if absent; the loser looks again. Source: `take_turn`."""
    number = process.turn
    if number <= len(store.turns):
        standing = store.turns[number - 1]
        if Rule.TURN_IF_ABSENT in world.dropped and standing.holder != process.own:
            # Without the rule, the claim overwrites the existing one.
            taken = (*store.turns[: number - 1], standing._replace(holder=process.own), *store.turns[number:])
            yield f"overwrites turn {number}", store._replace(turns=taken), _in_turn(world, process, number)
        elif standing.holder == process.own:
            yield f"finds turn {number} its own", store, _in_turn(world, process, number)
        else:
            lost = process._replace(step=Step.LOOK, turn=0)
            yield f"finds turn {number} taken", store, lost
        return
    claimed = store._replace(turns=(*store.turns, Turn(process.own)))
    yield f"claims turn {number}", claimed, _in_turn(world, process, number)
    yield f"claims turn {number}, answer lost", claimed, process


def plan(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Fold the log, list the destination, and freeze the plan. Source: `freeze`, `removals`."""
    replaces = process.own is Job.REPLACE
    made = Decision(
        Verdict.COMMIT,
        process.turn,
        takes_other=replaces and process.own.other in live(store),
        takes_old=max(store.old, 0) if replaces else 0,
    )
    step = Step.PREFLIGHT if Rule.TURN_BEFORE_PLAN not in world.dropped else Step.LOOK
    yield f"plans to remove {removals_text(made)}", store, process._replace(step=step, decision=made)


def live(store: Store) -> frozenset[Job]:
    """Fold the log into the jobs whose files are live. Source: `DestinationLog.manifest`."""
    found: set[Job] = set()
    for turn in store.turns:
        end, job, made = turn.outcome
        if end is End.PUBLISHED:
            if made.takes_other:
                found.discard(job.other)
            found.add(job)
    return frozenset(found)


def removals_text(made: Decision) -> str:
    """Describe the files that a plan removes."""
    names = [f"old file v{made.takes_old}"] * bool(made.takes_old) + ["APPEND's files"] * made.takes_other
    return " and ".join(names) or "nothing"


def preflight(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Check with one listing that the uploads exist. Source: `check_uploads`."""
    fails = Process(Step.FAIL, process.own, process.own, turn=process.turn)
    alive = File.GONE not in store.folders[process.own].files
    if alive or Rule.PREFLIGHT in world.dropped:
        # Without the rule, a lost upload is found only after the decision.
        yield "checks its uploads", store, process._replace(step=Step.CHECK_TURN)
    else:
        yield "misses one of its uploads", store, fails
    yield "meets a busy store", store, fails._replace(step=Step.STOP)
    if alive and not world.calm:
        pending = store.folders[process.own].files.count(File.PENDING)
        if pending:
            index = store.folders[process.own].files.index(File.PENDING)
            yield "misses an upload, lost for good", lose_upload(store, process.own, index), fails


def check_turn(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Check whether the turn was passed meanwhile. Source: `_Commit.decide`."""
    if store.turns[process.turn - 1].ended and Rule.CHECK_BEFORE_DECISION not in world.dropped:
        yield f"finds turn {process.turn} ended", store, first_look(world, process.own)
    else:
        yield f"finds turn {process.turn} still its own", store, process._replace(step=Step.DECIDE)


def decide(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Create `COMMIT_STARTED` if absent: commit. Source: `decide_commit`."""
    yield from _create_decision(world, store, process, process.decision)


def decide_abort(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Create `COMMIT_STARTED` if absent: abort. Source: `decide_abort`."""
    if Rule.ABORT_IS_DECIDED in world.dropped:
        # Without the rule, a process that finds the job undecided and expired just drops it.
        dropping = process._replace(step=Step.DROP, decision=ABORT, fails=True)
        yield "drops the job undecided", store, dropping
    else:
        yield from _create_decision(world, store, process, ABORT)


def fail(_world: World, store: Store, process: Process) -> Iterator[Move]:
    """Read whether the job is decided after all; if not, abort it, because its data is invalid.

    Source: `JobCommit`.
    """
    if store.folders[process.own].decision.verdict is not Verdict.NONE:
        yield "finds its job decided by another", store, follow(process.own, process.own)
    else:
        yield "aborts its job", store, Process(Step.DECIDE_ABORT, process.own, process.own)


def stop(world: World, store: Store, process: Process) -> Iterator[Move]:
    """Leave the job undecided and the turn to other processes. Source: `JobCommit`, `RETRYABLE_ERRORS`."""
    if Rule.TURN_IS_LEFT in world.dropped:
        # Without the rule, the turn is given back immediately.
        yield f"gives turn {process.turn} back", _passed(store, process.turn), IDLE
    else:
        yield "leaves its job and its turn", store, IDLE


def _in_turn(world: World, process: Process, turn: int) -> Process:
    if Rule.TURN_BEFORE_PLAN in world.dropped:
        made = process.decision._replace(turn=turn)
        return process._replace(step=Step.PREFLIGHT, turn=turn, decision=made)
    return process._replace(step=Step.PLAN, turn=turn)


def _passed(store: Store, number: int) -> Store:
    turn = store.turns[number - 1]
    if turn.ended:
        return store
    ended = turn._replace(outcome=Outcome(End.PASSED, turn.holder))
    return store._replace(turns=(*store.turns[: number - 1], ended, *store.turns[number:]))


def _create_decision(world: World, store: Store, process: Process, decision: Decision) -> Iterator[Move]:
    folder = store.folders[process.own]
    word = decision.verdict.name.lower()
    following = follow(process.own, process.own)
    if folder.decision.verdict is not Verdict.NONE and Rule.DECISION_IF_ABSENT not in world.dropped:
        if Rule.LOSERS_FOLLOW_THE_DECISION in world.dropped:
            # Without the rule, it continues as if its own decision had been stored.
            yield f"goes on to {word} though it lost the decision", store, _stubborn(process, decision)
        else:
            yield "loses the decision", store, following
        return
    # Without the first rule, a decision overwrites an existing one.
    decided = put_folder(store, process.own, folder._replace(decision=decision))
    yield f"decides: {word}", decided, following
    yield f"decides: {word}, answer lost", decided, process


def _stubborn(process: Process, decision: Decision) -> Process:
    if decision.verdict is Verdict.ABORT:
        return Process(Step.DROP, process.own, process.own, decision=decision, fails=True)
    return Process(Step.COMPLETE, process.own, process.own, decision=decision)
