"""Named points at which a test can crash, fail, or silence a call.

Every storage call passes two points, `<step>.<verb>.before` and `<step>.<verb>.after`, where the step is
what the protocol is doing (`decide`, `complete`, `clean-up`, …) and the verb what the store is asked to do.
Unarmed, a point costs one comparison.

    LOCKGATE_FAILPOINTS='decide.create.after=kill'          kill -9 when the decision has been written
    LOCKGATE_FAILPOINTS='complete.complete.before=kill@3'   at the third completion
    LOCKGATE_FAILPOINTS='decide.create.after=lost'          the call had its effect, its answer is lost
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, get_args

from lockgate.storage_core.errors import InvalidInputError, OutcomeUnknownError, StoreUnavailableError

Action = Literal["kill", "lost", "refuse"]
"""`kill`: SIGKILL to this process. `lost`: no answer came. `refuse`: the store said no, without an effect."""

_step: ContextVar[str] = ContextVar("lockgate_step", default="idle")


@dataclass
class _Armed:
    action: Action
    at: int
    seen: int = 0


@dataclass
class Failpoints:
    """The armed points of this process, and the observer that a harness may hang in."""

    armed: dict[str, _Armed] = field(default_factory=dict)
    observer: Callable[[str], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, points: Mapping[str, str]) -> None:
        """Arm points; replaces what was armed before.

        Args:
            points: name → `action` or `action@n` (at the n-th passage, counted from 1).

        Raises:
            InvalidInputError: An action that is not known, or a count that is not a number.
        """
        armed = {}
        for name, text in points.items():
            action, _, nth = text.partition("@")
            if action not in get_args(Action) or not (nth or "1").isdigit():
                raise InvalidInputError(f"failpoint {name}={text}: use kill, lost or refuse, as in kill@3")
            armed[name] = _Armed(action, int(nth or 1))  # type: ignore[arg-type]
        self.armed = armed

    def hit(self, name: str) -> None:
        """Pass a point; does nothing unless it is armed or observed."""
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
"""The points of this process."""


def parse_failpoints(text: str) -> dict[str, str]:
    """Read `name=action,name=action` as it stands in `LOCKGATE_FAILPOINTS`."""
    pairs = (part.strip().partition("=") for part in text.split(",") if part.strip())
    return {name: action for name, _, action in pairs}


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name what the protocol is doing, for every storage call within."""
    token = _step.set(name)
    try:
        yield
    finally:
        _step.reset(token)


def current_step() -> str:
    """Return the innermost step's name, `idle` outside all."""
    return _step.get()
