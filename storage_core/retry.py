"""Repeat a call that failed, after random pauses that grow.

Not with tenacity: its import loads asyncio and, where it is installed, tornado into every process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """When a failed call is repeated, and how often.

    Attributes:
        may_repeat: Returns whether the call may be repeated after an error.
        tries: Maximum number of tries, with the first one.
        pause_s: Longest pause after the first try; it doubles after each further one.
        longest_pause_s: Limit of the pauses.
        sleep: Blocks for a number of seconds.
    """

    may_repeat: Callable[[Exception], bool]
    tries: int
    pause_s: float
    longest_pause_s: float
    sleep: Callable[[float], None] = lambda seconds: time.sleep(seconds)  # noqa: PLW0108 - tests replace `time`

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function until it succeeds, and return what it returns.

        Args:
            function: A call that may be repeated.
            args: Its arguments.
            kwargs: Its arguments by name.

        Raises:
            Exception: The call may not be repeated after it, or it is the error of the last try.
        """
        for number in range(self.tries - 1):
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not self.may_repeat(error):
                    raise
            # Random, so that callers that were refused together do not come back together.
            self.sleep(random.uniform(0, min(self.longest_pause_s, self.pause_s * 2 ** min(number, 30))))  # noqa: S311
        return function(*args, **kwargs)
