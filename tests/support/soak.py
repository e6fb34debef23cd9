"""The length of stress tests: a short round in `make test`, all rounds in `make soak`.

`LOCKGATE_TEST_SOAK=1`, as `make soak` sets it, lasts about an hour on two cores; with 4, state machines and
storms last four times as long.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

SOAK: Final = float(os.environ.get("LOCKGATE_TEST_SOAK") or 0)
IS_SOAK: Final = SOAK > 0

T = TypeVar("T")


def rounds(short: T, soak: T) -> T:
    """Return the first in `make test`, the second in `make soak`."""
    return soak if IS_SOAK else short


def sample(items: Sequence[T], every: int, *, offset: int = 0) -> Sequence[T]:
    """Return each n-th item, the first and the last among them, in `make test`; all items in `make soak`.

    Args:
        items: In the order of the run.
        every: One of so many is kept.
        offset: Different for tests that are alike, so that together they keep more.
    """
    if IS_SOAK:
        return items
    last = len(items) - 1
    return [
        item for number, item in enumerate(items) if number in {0, last} or number % every == offset % every
    ]


def soak_only(*values: object) -> ParameterSet:
    """Return the parameters of a test that runs in `make soak` only."""
    return pytest.param(*values, marks=pytest.mark.soak)


def machine_settings(examples: int, steps: int) -> settings:
    """Return Hypothesis' settings for a state machine.

    In `make test` each run draws the same examples if it collects the same tests, because Hypothesis takes
    constants from imported modules. `make soak` draws five times as many, longer ones, and others each time.
    Shrinking a failure lasts up to five minutes, longer than the limit of a test: it is for `make soak` and
    `LOCKGATE_TEST_SHRINK=1` (with `--timeout 0`); else a failure is reported as it was found.
    """
    return settings(
        derandomize=not IS_SOAK,
        max_examples=rounds(examples, round(5 * SOAK * examples)),
        stateful_step_count=rounds(steps, 60),
        deadline=None,
        database=None,
        phases=tuple(Phase) if IS_SOAK or os.environ.get("LOCKGATE_TEST_SHRINK") else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
