"""Print the figures of `docs/internals/files.md`; with the argument `traces`, its traces."""

from __future__ import annotations

import sys
import time
from itertools import groupby

from tests.model.files.exploration import explore
from tests.model.files.worlds import DROPS, FULL, LARGER


def print_figures() -> None:
    """Explore every world, including the larger ones, and print a table."""
    print("| world | bounds | states | moves | stores | seconds |\n|---|---|---|---|---|---|")
    for name, world in {**FULL, **LARGER}.items():
        began_s = time.process_time()
        found = explore(world)
        took_s = time.process_time() - began_s
        figures = f"{found.states:,} | {found.moves:,} | {len(found.stores):,} | {took_s:.0f}"
        print(f"| {name} | {world} | {figures} |", flush=True)
        if found.violation is not None:
            print(f"\n{found.violation}")


def print_traces() -> None:
    """Drop each rule and print the shortest trace to a violation."""
    for rule, drop in DROPS.items():
        found = explore(drop.world._replace(dropped=frozenset({rule})), watched={drop.broken})
        if found.violation is None:
            raise AssertionError(rule)
        print(f"**{rule.capitalize()}.** Without it this breaks: {drop.broken}.\n")
        steps = (step.partition(") ") for step in found.violation.trace)
        for who, texts in groupby(steps, key=lambda parts: f"{parts[0]}): " if parts[1] else ""):
            print(f"- {who}{'; '.join(text or name for name, _, text in texts)}")
        print()


if __name__ == "__main__":
    print_traces() if sys.argv[1:] == ["traces"] else print_figures()
