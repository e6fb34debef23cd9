"""Reseal keeps every invariant in every state; without a rule it violates the protected one."""

from __future__ import annotations

import pytest

from tests.conftest import Summarise
from tests.model.files.exploration import explore
from tests.model.files.rules import Rule
from tests.model.files.worlds import DROPS, FULL, LARGER, SECOND_LINES, SMALL, SPARES_WORK
from tests.support.soak import soak_only

FLOOR = {
    "a damaged volume and one out of reach": 80_000,
    "two restarts, one of them with damage": 18_000,
    "a lost call": 24_000,
    "a writer, another writer and a recovery": 58_000,
    "append to a closed file": 29_000,
    "truncate, with a restart and a volume out of reach": 39_000,
    "a new block": 37_000,
}
"""States that the exploration must visit at least: a model that lost a step would visit fewer."""


FIRST = "a writer, another writer and a recovery"
"""Explored in `make test`; the other worlds are left to `make soak`."""


@pytest.mark.parametrize("name", [FIRST, *(soak_only(name) for name in [*FULL, *LARGER] if name != FIRST)])
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


@pytest.mark.soak
@pytest.mark.parametrize("rule", SECOND_LINES, ids=lambda rule: rule.name.lower())
def test_a_second_line_holds_alone_and_breaks_with_the_first(rule: Rule) -> None:
    other, drop = SECOND_LINES[rule]
    alone = explore(drop.world._replace(dropped=frozenset({rule})))
    assert alone.violation is None, f"{alone.violation}"
    both = explore(drop.world._replace(dropped=frozenset({rule, other})), watched={drop.broken})
    assert both.violation is not None, f"{rule}, {other}: nothing breaks without both in {both}"
    print(f"without: {rule}; {other}\n{both.violation}")


@pytest.mark.soak
@pytest.mark.parametrize("rule", SPARES_WORK, ids=lambda rule: rule.name.lower())
@pytest.mark.parametrize("name", SMALL)
def test_dropping_a_rule_of_reseal_that_only_saves_replicas_breaks_nothing(rule: Rule, name: str) -> None:
    found = explore(SMALL[name]._replace(dropped=frozenset({rule})))
    assert found.violation is None, f"\n{found.violation}"


def test_every_rule_of_reseal_is_dropped_by_at_least_one_test() -> None:
    assert {*DROPS, *SECOND_LINES, *SPARES_WORK} == set(Rule)
