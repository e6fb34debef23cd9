"""Turn: the right to commit to a destination next; numbered, and claimed by one job at a time.

Turns serialize the commits to a destination; tasks of several jobs may write at the same time. The record of
a claimed turn is in `records/log_records.py`, a turn with its outcome in `destination/log.py`.

Source: commit protocol, step 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.log import DestinationLog, LogRead, Turn
from lockgate.storage_core.commit.leases.job_lease import JobLeases, JobLeaseState
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.log_records import Outcome, TurnClaim
from lockgate.storage_core.errors import (
    LockgateError,
    MalformedLogError,
    MalformedRecordError,
    ObjectNotFoundError,
    TurnBusyError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId, Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store

TURN_WAIT_S: Final = 600.0
"""How long a commit waits for live jobs with the turn. After it, the job stays undecided."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


def take_turn(
    folder: JobFolder,
    token: Token,
    stamp: Stamp,
    *,
    leases: JobLeases,
    clock: Clock,
    roll_forward_other: Callable[[JobId], None],
    seen: LogRead | None = None,
) -> int:
    """Take the next turn at the job's destination, or return the job's open turn from an earlier try.

    Args:
        folder: Folder of the job to commit.
        token: Owner token for the claim of the turn.
        stamp: Stamp of the job's lease.
        leases: Leases, to read whether the job that has a turn is alive.
        clock: Clock, which also waits between two reads.
        roll_forward_other: Brings another, decided job to its end.
        seen: What this process has just read of the log; by default it is read now.

    Raises:
        TurnBusyError: Live jobs had the turn for `TURN_WAIT_S`, or the job that has it cannot be
            brought to its end now; nothing of this job was changed.
    """
    store, log = folder.store, DestinationLog(folder.store)
    deadline_s = clock.monotonic_s() + TURN_WAIT_S
    waiting_for, pause_s = 0, FIRST_PAUSE_S
    with step("turn"):
        while True:
            number, latest = _highest(log) if seen is None else (seen.highest, seen.open)
            seen = None  # it is read again, because another job has the turn
            if latest is None or latest.outcome is not None:
                record = TurnClaim(job_id=folder.job_id, token=token, stamp=stamp)
                if claim(store, layout.turn_claim(number + 1), record).job_id == folder.job_id:
                    return number + 1
            elif latest.claim.job_id == folder.job_id:
                return number
            elif not _end_turn(store, latest, leases, clock, roll_forward_other):
                if clock.monotonic_s() >= deadline_s:
                    raise TurnBusyError(
                        f"job {latest.claim.job_id} has turn {number} at {store.url} and is "
                        f"alive, or its lease cannot be read here; waited {TURN_WAIT_S:.0f} s; nothing was "
                        "changed; try again, or abort that job"
                    )
                is_same = number == waiting_for
                waiting_for = number
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if is_same else FIRST_PAUSE_S
                clock.sleep(pause_s)


def _highest(log: DestinationLog) -> tuple[int, Turn | None]:
    highest = log.highest()
    return (0, None) if highest is None else (highest.number, highest)


def pass_turn(store: Store, turn: int, owner: JobId, clock: Clock, reason: str) -> Outcome:
    """End a turn without a publication; return its stored outcome."""
    outcome = Outcome(job_id=owner, turn=turn, verdict="passed", decided_s=clock.now_s(), reason=reason)
    return claim(store, layout.turn_outcome(turn), outcome)


def _end_turn(
    store: Store, turn: Turn, leases: JobLeases, clock: Clock, roll_forward_other: Callable[[JobId], None]
) -> bool:
    """End an open turn of another job unless that job is alive; return whether the turn was ended."""
    owner = JobFolder(store, turn.claim.job_id)
    try:
        decision = owner.decision()
        if decision is not None and decision.verdict == "commit" and decision.turn == turn.number:
            roll_forward_other(owner.job_id)
            if DestinationLog(store).turn(turn.number).outcome is None:
                raise MalformedLogError(
                    f"the log of {store.url}: {layout.turn_outcome(turn.number)} is gone, although job "
                    f"{owner.job_id} has ended; nothing was changed; `lockgate store repair {store.url}` "
                    "rebuilds it"
                )
            return True
        if decision is not None:
            pass_turn(store, turn.number, owner.job_id, clock, "its job was decided otherwise")
            return True
        try:
            view = leases.look(owner)
        except ObjectNotFoundError:  # the destination was moved away, or its records were deleted by hand
            pass_turn(store, turn.number, owner.job_id, clock, "its job has no record here")
            return True
        if view.unread or (view.state is JobLeaseState.LIVE and view.stamp == turn.claim.stamp):
            return False
        # Lapsed, suspended, unknown, or of a later driver: the job loses only this turn.
        pass_turn(store, turn.number, owner.job_id, clock, "its job is undecided and has no driver")
    except MalformedLogError:
        raise  # it belongs to no single job
    except LockgateError as error:
        # Whatever became of the other job or its turn, this job is undecided and unchanged.
        is_lost = isinstance(error, (MalformedRecordError, ObjectNotFoundError))
        command = "quarantine" if is_lost else "recover"
        raise TurnBusyError(
            f"job {owner.job_id} has turn {turn.number} at {store.url} and cannot be brought to its end "
            f"({error}); nothing of this job was changed; run `lockgate jobs {command} {store.url} "
            f"{owner.job_id}`, then try again"
        ) from error
    return True
