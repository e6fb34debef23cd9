"""Named points at which a test can crash the process, fail a call, or drop its response.

Every storage call passes two points, `<step>.<verb>.before` and `<step>.<verb>.after`. The step is a step of
the protocol (`decide`, `complete`, `clean-up`, …), the verb a method of the store. An unarmed point costs one
comparison.

    LOCKGATE_FAILPOINTS='decide.create.after=kill'          kill -9 after the decision was written
    LOCKGATE_FAILPOINTS='complete.complete.before=kill@3'   kill -9 before the third completion
    LOCKGATE_FAILPOINTS='decide.create.after=lost'          the call is applied, its response is lost
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, TypeVar, get_args

from lockgate.storage_core.errors import InvalidInputError, OutcomeUnknownError, StoreUnavailableError

T = TypeVar("T")

Action = Literal["kill", "lost", "refuse"]
"""`kill`: SIGKILL this process. `lost`: the outcome is unknown. `refuse`: the call was not applied."""

_step: ContextVar[str] = ContextVar("lockgate_step", default="idle")


@dataclass
class _Armed:
    action: Action
    at: int
    seen: int = 0


@dataclass
class Failpoints:
    """Armed points, and an optional observer for test harnesses."""

    armed: dict[str, _Armed] = field(default_factory=dict)
    observer: Callable[[str], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, points: Mapping[str, str]) -> None:
        """Arm these points and disarm all others.

        Args:
            points: `action` or `action@n` (at the n-th hit, counted from 1) of each name.

        Raises:
            InvalidInputError: An action is unknown, or a count is not a number.
        """
        armed = {}
        for name, text in points.items():
            action, _, nth = text.partition("@")
            if action not in get_args(Action) or not (nth or "1").isdigit():
                raise InvalidInputError(f"failpoint {name}={text}: use kill, lost or refuse, as in kill@3")
            armed[name] = _Armed(action, int(nth or 1))  # type: ignore[arg-type]
        self.armed = armed

    def hit(self, name: str) -> None:
        """Pass a point, and act if it is armed."""
        if not self.armed and self.observer is None:
            return
        if self.observer is not None:
            self.observer(name)
        point = self.armed.get(name)
        if point is None:
            return
        with self._lock:
            point.seen += 1
            due = point.seen == point.at
        if due:
            _act(name, point.action)


def _act(name: str, action: Action) -> NoReturn:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "lost":
        raise OutcomeUnknownError(f"failpoint {name}: the answer was lost on purpose")
    raise StoreUnavailableError(f"failpoint {name}: refused on purpose; nothing was applied")


FAILPOINTS: Final = Failpoints()
"""Failpoints of this process."""


def parse_failpoints(text: str) -> dict[str, str]:
    """Parse the value of `LOCKGATE_FAILPOINTS`: `name=action,name=action`."""
    pairs = (part.strip().partition("=") for part in text.split(",") if part.strip())
    return {name: action for name, _, action in pairs}


def around(name: str, call: Callable[[], T]) -> T:
    """Make a call between the points `<name>.before` and `<name>.after`."""
    FAILPOINTS.hit(f"{name}.before")
    result = call()
    FAILPOINTS.hit(f"{name}.after")
    return result


@contextmanager
def step(name: str) -> Iterator[None]:
    """Set the protocol step of all storage calls within."""
    token = _step.set(name)
    try:
        yield
    finally:
        _step.reset(token)


def current_step() -> str:
    """Return the innermost step, or `idle` if there is none."""
    return _step.get()
