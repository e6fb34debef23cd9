"""Report the demo's steps: a line after each, and a table of all at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass
class Step:
    """One step and its summary."""

    name: str
    happened: str = ""
    seconds: float = 0.0


@dataclass
class Steps:
    """All steps so far, in order."""

    console: Console
    done: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Measure a step; it is recorded only if it does not raise."""
        step = Step(name)
        began_s = time.monotonic()
        with self.console.status(f"{escape(name)} …"):
            yield step
        self._add(step, time.monotonic() - began_s)

    def part(self, name: str, happened: str, seconds: float) -> None:
        """Record a step that was measured elsewhere."""
        self._add(Step(name, happened), seconds)

    def table(self, title: str) -> Table:
        """Return all steps as a table."""
        table = Table(title=title, title_justify="left")
        table.add_column("step", no_wrap=True)
        table.add_column("what happened", overflow="fold")
        table.add_column("seconds", justify="right")
        for step in self.done:
            table.add_row(escape(step.name), escape(step.happened), f"{step.seconds:.1f}")
        return table

    def _add(self, step: Step, seconds: float) -> None:
        step.seconds = seconds
        self.done.append(step)
        self.console.print(f"[green]✓[/] {escape(step.name)} [dim]{seconds:.1f} s[/]")


class DemoFailedError(Exception):
    """A check failed; the message has the details and the log to read."""
