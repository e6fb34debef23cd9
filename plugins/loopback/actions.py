"""Actions in threads of this process, each with a state that can be read."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any, Final, Literal

from fastapi import APIRouter

from lockgate.plugins.web.access import ActionName, ActionRequest, ActionStarted
from lockgate.plugins.web.answers import Model
from lockgate.plugins.web.api.effects import carry_out
from lockgate.plugins.web.problems import problem_of
from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.pages")
KEPT: Final = 100
"""Newest actions whose state is kept."""

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
    state: Literal["running", "done", "failed"] = "running"
    text: str = ""
    lines: tuple[str, ...] = ()
    step: str = ""
    done: int = 0
    total: int = 0
    started_s: float
    ended_s: float | None = None


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
        self._states: dict[int, ActionState] = {}

    @property
    def running(self) -> int:
        """Number of actions that have not ended."""
        return sum(one.state == "running" for one in self.states())

    def start(self, action: ActionName, request: ActionRequest, user: str) -> ActionStarted:
        """Start an action in a thread.

        Raises:
            ConflictError: Too many are running, or the same one is.
        """
        with self._lock:
            running = [one for one in self._states.values() if one.state == "running"]
            for one in running:
                if (one.action, one.destination, one.job_id) == (action, request.destination, request.job_id):
                    raise ConflictError(
                        f"{action} is running already, as action {one.number}; nothing was started"
                    )
            if len(running) >= AT_ONCE:
                raise ConflictError(
                    f"{len(running)} actions are running; nothing was started; wait until one has ended"
                )
            number = next(self._numbers)
            self._states[number] = ActionState(
                number=number,
                action=action,
                destination=request.destination,
                job_id=request.job_id,
                user=user,
                started_s=time.time(),
            )
            if len(self._states) > KEPT:
                del self._states[min(self._states)]
        LOG.info("action %d: %s by %s", number, action, user)
        threading.Thread(
            target=self._carry_out, args=(number, action, request), name=f"action-{number}", daemon=True
        ).start()
        return ActionStarted(
            action=action,
            dry_run=False,
            text=f"Started action {number} in this process.",
            href=f"{self._prefix}/api/v1/actions/running/{number}",
        )

    def state(self, number: int) -> ActionState:
        """Return the state of an action.

        Raises:
            ObjectNotFoundError: This process has started no such action, or has forgotten it.
        """
        found = self._states.get(number)
        if found is None:
            raise ObjectNotFoundError(f"action {number}: this process does not know it; nothing was read")
        return found

    def states(self) -> list[ActionState]:
        """Return the states of the actions, the newest first."""
        with self._lock:
            return list(self._states.values())[::-1]

    def _carry_out(self, number: int, action: ActionName, request: ActionRequest) -> None:
        def progress(step: str, done: int, total: int) -> None:
            self._change(number, step=step, done=done, total=total)

        try:
            effect = carry_out(action, request, self._settings, dry_run=False, progress=progress)
        except Exception as error:  # a thread has no caller; the state shows it
            LOG.warning("action %d: %s failed", number, action, exc_info=error)
            self._change(number, state="failed", text=problem_of(error).detail, ended_s=time.time())
        else:
            ended = {"text": effect.text, "lines": effect.lines, "ended_s": time.time()}
            self._change(number, state="done", **ended)

    def _change(self, number: int, **changes: Any) -> None:
        with self._lock:
            if number in self._states:
                self._states[number] = self._states[number].model_copy(update=changes)


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
