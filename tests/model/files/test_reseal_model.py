"""Reseal keeps every invariant in every state; without a rule it violates the protected one."""

from __future__ import annotations

import pytest

from tests.conftest import Summarise
from tests.model.files.exploration import explore
from tests.model.files.rules import Rule
from tests.model.files.worlds import DROPS, FULL, LARGER
from tests.support.soak import soak_only

FLOOR = {
    "a writer, another writer and a recovery": 150_000,
    "two damages": 300_000,
    "a damage, a restart and a volume out of reach": 400_000,
    "a lost call": 50_000,
    "append to a closed file": 200_000,
    "truncate, with a restart and a volume out of reach": 60_000,
    "a new block": 40_000,
}
"""States that the exploration must visit at least: a model that lost a step would visit fewer."""

FIRST = ("a lost call", "a new block", "truncate, with a restart and a volume out of reach")
"""Explored in `make test`; the other worlds are left to `make soak`."""


@pytest.mark.parametrize(
    "name", [*FIRST, *(soak_only(name) for name in [*FULL, *LARGER] if name not in FIRST)]
)
def test_reseal_keeps_every_invariant_in_every_state(name: str, summarise: Summarise) -> None:
    found = explore({**FULL, **LARGER}[name])
    summarise(f"{name}: {found}")
    assert found.violation is None, f"{found.violation}"
    assert found.states >= FLOOR.get(name, 80_000)


@pytest.mark.parametrize("rule", DROPS, ids=lambda rule: rule.name.lower())
def test_dropping_a_rule_of_reseal_breaks_the_invariant_that_it_protects(rule: Rule) -> None:
    drop = DROPS[rule]
    found = explore(drop.world._replace(dropped=frozenset({rule})), watched={drop.broken})
    assert found.violation is not None, f"{rule}: nothing breaks without it in {found}"
    print(f"without: {rule}\n{found.violation}")


def test_every_rule_of_reseal_is_dropped_by_a_test() -> None:
    assert set(DROPS) == set(Rule)
