"""Print the figures of `docs/internals/testing.md`; with the argument `traces`, its traces."""

from __future__ import annotations

import sys
import time
from itertools import groupby
from operator import itemgetter

from tests.model.commit.configurations import DROPS, FULL, LARGER
from tests.model.commit.exploration import explore


def print_figures() -> None:
    """Explore every world, including the larger ones, and print a table."""
    print("| world | processes | states | moves | stores | seconds |\n|---|---|---|---|---|---|")
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
        print(f"**{rule}.** Without it this breaks: {drop.broken}.\n")
        steps_of_trace = (step.partition(") ") for step in found.violation.trace)
        for who, steps in groupby(steps_of_trace, key=itemgetter(0)):
            print(f"- {who}): {'; '.join(text for _, _, text in steps)}")
        print()


if __name__ == "__main__":
    print_traces() if sys.argv[1:] == ["traces"] else print_figures()
