"""Turns: commits to one destination are serial; writing is not.

Source: commit protocol, step 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.commit.destination.log import DestinationLog, Turn
from lockgate.storage_core.commit.leases.protocol import Leases, LeaseState
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job import Outcome, TurnClaim
from lockgate.storage_core.commit.records.job_folder import JobFolder, claim
from lockgate.storage_core.errors import NotAppliedError, TurnBusyError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobId, Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Store

TURN_WAIT_S: Final = 600.0
"""How long a commit waits for live jobs that hold the turn before it gives up, undecided."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


def take_turn(
    folder: JobFolder,
    token: Token,
    stamp: Stamp,
    *,
    leases: Leases,
    clock: Clock,
    help_job: Callable[[JobId], None],
    wait_s: float = TURN_WAIT_S,
) -> int:
    """Take the next turn at the job's destination; a retry goes on with its own that has no outcome.

    Args:
        folder: Of the job that wants to commit.
        token: Tells this job's claims from others'.
        stamp: Of the lease that the job is driven under.
        leases: Say whether the holder of the turn lives.
        clock: Waits between looks.
        help_job: Brings a decided job to its end.
        wait_s: For live holders, of one turn after the other.

    Raises:
        TurnBusyError: Live jobs held the turn for `wait_s`, or the job that holds it cannot be brought to
            its end now; nothing of this job was changed.
    """
    store, log = folder.store, DestinationLog(folder.store)
    patience = _Patience(store, clock, wait_s)
    with step("turn"):
        while True:
            highest = log.highest()
            if highest is not None and highest.outcome is None:
                if highest.claim.job_id == folder.job_id:
                    return highest.number
                if _bring_to_outcome(store, highest, leases, clock, help_job):
                    continue
                patience.wait_for(highest)
                continue
            number = 1 if highest is None else highest.number + 1
            mine = TurnClaim(job_id=folder.job_id, token=token, stamp=stamp)
            if claim(store, layout.turn_claim(number), mine).job_id == folder.job_id:
                return number


def pass_turn(store: Store, turn: int, owner: JobId, clock: Clock, reason: str) -> Outcome:
    """End a turn without a publication; returns the outcome that stands."""
    outcome = Outcome(job_id=owner, turn=turn, verdict="passed", decided_s=clock.now_s(), reason=reason)
    return claim(store, layout.turn_outcome(turn), outcome)


class _Patience:
    """Waits between two looks at turns that live jobs hold, longer each time that it is the same turn."""

    def __init__(self, store: Store, clock: Clock, wait_s: float) -> None:
        self._store = store
        self._clock = clock
        self._wait_s = wait_s
        self._deadline_s = clock.now_s() + wait_s
        self._turn = 0
        self._pause_s = FIRST_PAUSE_S

    def wait_for(self, turn: Turn) -> None:
        """Pause before the next look.

        Raises:
            TurnBusyError: It has waited for long enough.
        """
        if self._clock.now_s() >= self._deadline_s:
            raise TurnBusyError(
                f"job {turn.claim.job_id} holds turn {turn.number} at {self._store.url} and lives, or its "
                f"lease cannot be read here; after {self._wait_s:.0f} s of waiting nothing was changed; try "
                "again, or abort that job"
            )
        if turn.number != self._turn:
            self._turn, self._pause_s = turn.number, FIRST_PAUSE_S
        self._clock.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


def _bring_to_outcome(
    store: Store, turn: Turn, leases: Leases, clock: Clock, help_job: Callable[[JobId], None]
) -> bool:
    """Try to end a turn that has no outcome; tells whether to look again at once."""
    owner = JobFolder(store, turn.claim.job_id)
    try:
        decision = owner.decision()
        if decision is not None and decision.verdict == "commit" and decision.turn == turn.number:
            help_job(owner.job_id)
            return True
        view = leases.look(owner)
    except NotAppliedError as error:
        # The other job's trouble says nothing of this one, which stays undecided.
        raise TurnBusyError(
            f"job {owner.job_id} holds turn {turn.number} at {store.url} and cannot be brought to its end "
            f"({error}); nothing of this job was changed; run `lockgate jobs recover {store.url} "
            f"{owner.job_id}`, then try again"
        ) from error
    if decision is not None:
        pass_turn(store, turn.number, owner.job_id, clock, "its job was decided otherwise")
        return True
    if view.unread or (view.state is LeaseState.LIVE and view.stamp == turn.claim.stamp):
        return False
    # Lapsed, parked, unknown, or driven by a later one: passing costs that job its turn and nothing else.
    pass_turn(store, turn.number, owner.job_id, clock, "its job is undecided and nobody drives it")
    return True
