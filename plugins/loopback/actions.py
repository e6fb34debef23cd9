"""Actions in this process: each runs in a thread, and its state can be read."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal

from fastapi import APIRouter

from lockgate.plugins.web.facts.effects import carry_out
from lockgate.plugins.web.models.actions import ActionName, ActionRequest, ActionStarted
from lockgate.plugins.web.models.model import Model
from lockgate.plugins.web.problems import problem_of
from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.pages")
KEPT: Final = 100
"""Ended actions whose state is kept."""

AT_ONCE: Final = 4


class ActionState(Model):
    """State of an action that this process carries out.

    Attributes:
        text: What was done; or the error.
        step: What it is doing: a step's name, with `done` of `total` items (0: unknown).
    """

    number: int
    action: ActionName
    destination: str | None
    job_id: str | None
    user: str
    state: Literal["running", "done", "failed"]
    text: str
    lines: tuple[str, ...]
    step: str
    done: int
    total: int
    started_s: float
    ended_s: float | None


@dataclass
class _Run:
    number: int
    action: ActionName
    request: ActionRequest
    user: str
    started_s: float = field(default_factory=time.time)
    ended_s: float | None = None
    state: Literal["running", "done", "failed"] = "running"
    text: str = ""
    lines: tuple[str, ...] = ()
    progress: tuple[str, int, int] = ("", 0, 0)


class InProcess:
    """Carries actions out in threads of this process; see `Actions`.

    A process that dies in the middle leaves what a killed command leaves: recovery and the next sweep
    finish it.

    Args:
        settings: Settings of this process.
        prefix: Where the application is mounted.
    """

    def __init__(self, settings: Settings, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._runs: OrderedDict[int, _Run] = OrderedDict()

    @property
    def running(self) -> int:
        """Number of actions that have not ended."""
        return sum(run.state == "running" for run in list(self._runs.values()))

    def start(self, action: ActionName, request: ActionRequest, user: str) -> ActionStarted:
        """Start an action in a thread.

        Raises:
            ConflictError: Too many are running, or the same one is.
        """
        with self._lock:
            running = [run for run in self._runs.values() if run.state == "running"]
            for run in running:
                same = (run.action, run.request.destination, run.request.job_id)
                if same == (action, request.destination, request.job_id):
                    raise ConflictError(
                        f"{action} is running already, as action {run.number}; nothing was started"
                    )
            if len(running) >= AT_ONCE:
                raise ConflictError(
                    f"{len(running)} actions are running; nothing was started; wait until one has ended"
                )
            run = _Run(next(self._numbers), action, request, user)
            self._runs[run.number] = run
            while len(self._runs) > KEPT:
                self._runs.popitem(last=False)
        threading.Thread(
            target=self._carry_out, args=(run,), name=f"action-{run.number}", daemon=True
        ).start()
        return ActionStarted(
            action=action,
            dry_run=False,
            text=f"Started action {run.number} in this process.",
            href=f"{self._prefix}/api/v1/actions/running/{run.number}",
        )

    def state(self, number: int) -> ActionState:
        """Return the state of an action.

        Raises:
            ObjectNotFoundError: This process has started no such action, or has forgotten it.
        """
        run = self._runs.get(number)
        if run is None:
            raise ObjectNotFoundError(f"action {number}: this process does not know it; nothing was read")
        step, done, total = run.progress
        return ActionState(
            number=run.number,
            action=run.action,
            destination=run.request.destination,
            job_id=run.request.job_id,
            user=run.user,
            state=run.state,
            text=run.text,
            lines=run.lines,
            step=step,
            done=done,
            total=total,
            started_s=run.started_s,
            ended_s=run.ended_s,
        )

    def states(self) -> list[ActionState]:
        """Return the states of the actions, the newest first."""
        return [self.state(number) for number in reversed(list(self._runs))]

    def _carry_out(self, run: _Run) -> None:
        def progress(step: str, done: int, total: int) -> None:
            run.progress = (step, done, total)

        LOG.info("action %d: %s by %s", run.number, run.action, run.user)
        try:
            effect = carry_out(run.action, run.request, self._settings, dry_run=False, progress=progress)
        except Exception as error:  # a thread has no caller; the state shows it
            LOG.warning("action %d: %s failed", run.number, run.action, exc_info=error)
            run.text = problem_of(error).detail
            state: Literal["done", "failed"] = "failed"
        else:
            run.text, run.lines, state = effect.text, effect.lines, "done"
        run.ended_s = time.time()
        run.state = state


def progress_routes(actions: InProcess) -> APIRouter:
    """Return the routes of the states."""
    router = APIRouter(prefix="/actions/running", tags=["actions"])

    @router.get("")
    def list_actions() -> list[ActionState]:
        """Actions of this process, the newest first."""
        return actions.states()

    @router.get("/{number}")
    def show_action(number: int) -> ActionState:
        """State of an action of this process."""
        return actions.state(number)

    return router
