"""The state of the store and the memory of each process: small, frozen, hashable.

All values are integers, so that states compare and sort fast; the enumerations give the names.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class Job(IntEnum):
    """The two jobs at the destination."""

    APPEND = 0
    REPLACE = 1

    @property
    def other(self) -> Job:
        """Return the other job."""
        return Job(1 - self)


class File(IntEnum):
    """One file of a job: its upload is open, its object exists, or neither."""

    PENDING = 0
    VISIBLE = 1
    GONE = 2


class Verdict(IntEnum):
    """The decision in `COMMIT_STARTED`."""

    NONE = 0
    COMMIT = 1
    ABORT = 2


class End(IntEnum):
    """The result in a turn's outcome."""

    NONE = 0
    PUBLISHED = 1
    REVERTED = 2
    PASSED = 3


class Decision(NamedTuple):
    """`COMMIT_STARTED`. A commit names its plan, which is immutable, so its content is included here.

    Attributes:
        turn: Turn from 1; 0 if the decision is not a commit.
        takes_other: Whether the plan removes the other job's files.
        takes_old: Version of the old file that it removes; 0 if none.
    """

    verdict: Verdict
    turn: int = 0
    takes_other: bool = False
    takes_old: int = 0


UNDECIDED: Final = Decision(Verdict.NONE)
ABORT: Final = Decision(Verdict.ABORT)


class Outcome(NamedTuple):
    """`log/<turn>.json`: its job and, if published, its plan."""

    end: End
    job: Job
    plan: Decision = UNDECIDED


NO_OUTCOME: Final = Outcome(End.NONE, Job.APPEND)


class Turn(NamedTuple):
    """`log/<turn>.turn` and the outcome of that turn."""

    holder: Job
    outcome: Outcome = NO_OUTCOME

    @property
    def ended(self) -> bool:
        """Return whether the turn has an outcome."""
        return self.outcome.end is not End.NONE


class Folder(NamedTuple):
    """One job's records, uploads and objects."""

    decision: Decision
    success: bool
    failure: bool
    files: tuple[File, ...]


class Store(NamedTuple):
    """The persistent state, which outlives a process.

    Attributes:
        turns: The destination log, from turn 1.
        folders: Folder of each job.
        old: Version of an old file that no job wrote; negative if that version was deleted.
    """

    turns: tuple[Turn, ...]
    folders: tuple[Folder, Folder]
    old: int


class Step(IntEnum):
    """The storage call that a process makes next."""

    IDLE = 0
    LOOK = 1
    READ_HOLDER = 2
    PASS = 3
    CLAIM = 4
    PLAN = 5
    PREFLIGHT = 6
    CHECK_TURN = 7
    DECIDE = 8
    FAIL = 9
    STOP = 10
    DECIDE_ABORT = 11
    ROLL = 12
    COMPLETE = 13
    RESOLVE = 14
    END_TURN = 15
    REMOVE = 16
    ABORT_UPLOAD = 17
    TAKE_BACK = 18
    DROP = 19
    END = 20
    GONE = 21


class Process(NamedTuple):
    """One process: its next step and the values that it has read, which may be stale.

    Attributes:
        own: Its own job.
        subject: The job that it works on; another job while it helps.
        turn: Turn that it has read, claims or has taken; 0 if none.
        decision: The plan that it would decide for, later the decision that it follows.
        file: The next file.
        fails: Whether it is failing the job because a file is lost or the job is being reverted.
    """

    step: Step
    own: Job = Job.APPEND
    subject: Job = Job.APPEND
    turn: int = 0
    decision: Decision = UNDECIDED
    file: int = 0
    fails: bool = False


IDLE: Final = Process(Step.IDLE)
"""Not begun, or to begin again."""
GONE: Final = Process(Step.GONE)
"""At its end, for good."""


class State(NamedTuple):
    """The state of the world at one moment."""

    store: Store
    processes: tuple[Process, ...]


def initial(processes: int, files: tuple[int, int]) -> State:
    """Return the state in which all tasks have committed and no job commit has begun."""
    folders = [
        Folder(UNDECIDED, success=False, failure=False, files=(File.PENDING,) * count) for count in files
    ]
    return State(Store((), (folders[0], folders[1]), old=1), (IDLE,) * processes)


def put_file(store: Store, job: Job, index: int, file: File) -> Store:
    """Return the store with one file changed."""
    folder = store.folders[job]
    files = (*folder.files[:index], file, *folder.files[index + 1 :])
    return put_folder(store, job, folder._replace(files=files))


def put_folder(store: Store, job: Job, folder: Folder) -> Store:
    """Return the store with one job's folder changed."""
    first, second = store.folders
    return store._replace(folders=(folder, second) if job is Job.APPEND else (first, folder))


def canonical(state: State, alike: tuple[int, ...]) -> State:
    """Return the representative of all states without a relevant difference.

    Processes of one role have no names, so their order is irrelevant. A turn that was passed, that no process
    uses and that is the first or follows an ended one, is never read again: it is dropped, and
    later turns move up. So the log stays short although turns may be passed infinitely often.

    Args:
        state: Result of a move.
        alike: Number of processes of each role, in order.
    """
    store, processes = state
    forgotten = _forgettable(store, processes) if store.turns else None
    while forgotten is not None:
        store, processes = _forget(store, processes, forgotten)
        forgotten = _forgettable(store, processes)
    first = 0
    for count in alike:
        if count > 1:
            group = sorted(processes[first : first + count])
            processes = (*processes[:first], *group, *processes[first + count :])
        first += count
    return State(store, processes)


def _forgettable(store: Store, processes: tuple[Process, ...]) -> int | None:
    for number, turn in enumerate(store.turns, start=1):
        if turn.outcome.end is not End.PASSED or not (number == 1 or store.turns[number - 2].ended):
            continue
        in_hand = any(number in (process.turn, process.decision.turn) for process in processes)
        if not in_hand and all(folder.decision.turn != number for folder in store.folders):
            return number
    return None


def _forget(store: Store, processes: tuple[Process, ...], gone: int) -> tuple[Store, tuple[Process, ...]]:
    def moved(decision: Decision) -> Decision:
        return decision._replace(turn=decision.turn - 1) if decision.turn > gone else decision

    turns = tuple(
        turn._replace(outcome=turn.outcome._replace(plan=moved(turn.outcome.plan)))
        for number, turn in enumerate(store.turns, start=1)
        if number != gone
    )
    first, second = (folder._replace(decision=moved(folder.decision)) for folder in store.folders)
    held = tuple(
        process._replace(
            turn=process.turn - 1 if process.turn > gone else process.turn, decision=moved(process.decision)
        )
        for process in processes
    )
    return store._replace(turns=turns, folders=(first, second)), held
