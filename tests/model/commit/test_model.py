"""The protocol keeps every invariant in every state; without a rule it violates the protected one."""

from __future__ import annotations

import pytest

from tests.conftest import Summarise
from tests.model.commit.configurations import DROPS, FULL, SMALL, SPARES_WORK
from tests.model.commit.exploration import explore
from tests.model.commit.rules import Rule
from tests.support.soak import soak_only

FLOOR = {
    "two jobs and a recoverer": 80_000,
    "a committer, its zombie and a recoverer, append": 100_000,
    "a committer, its zombie and a recoverer, replace": 130_000,
    "nothing goes wrong but crashes, pauses and lost answers": 19_000,
}
"""States that the exploration must visit at least: a model that lost a step would visit fewer."""
LARGE = {name for name in FULL if "zombie" in name}
"""Left to `make soak`; `make test` explores a zombie in the small worlds."""


@pytest.mark.parametrize("name", [soak_only(name) if name in LARGE else name for name in FULL])
def test_the_protocol_keeps_every_invariant_in_every_state(name: str, summarise: Summarise) -> None:
    found = explore(FULL[name])
    summarise(f"{name}: {found}")
    assert found.violation is None, f"{found.violation}"
    assert found.states >= FLOOR[name]
    assert found.ends


@pytest.mark.parametrize("rule", DROPS, ids=lambda rule: rule.name.lower())
def test_dropping_a_rule_breaks_the_invariant_that_it_protects(rule: Rule) -> None:
    drop = DROPS[rule]
    found = explore(drop.world._replace(dropped=frozenset({rule})), watched={drop.broken})
    assert found.violation is not None, f"{rule}: nothing breaks without it in {found}"
    print(f"without: {rule}\n{found.violation}")
    assert found.violation.invariant is drop.broken


@pytest.mark.parametrize("name", SMALL)
def test_the_small_worlds_keep_every_invariant_with_all_rules(name: str) -> None:
    assert explore(SMALL[name]).violation is None


@pytest.mark.parametrize("name", SMALL)
def test_taking_final_steps_immediately_reaches_the_same_end_states(name: str) -> None:
    with_each_step = explore(SMALL[name]._replace(at_once=False))
    assert explore(SMALL[name]).ends == with_each_step.ends
    assert with_each_step.violation is None


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("rule", SPARES_WORK, ids=lambda rule: rule.name.lower())
def test_dropping_a_rule_that_only_saves_work_breaks_nothing(rule: Rule, name: str) -> None:
    found = explore(SMALL[name]._replace(dropped=frozenset({rule})))
    assert found.violation is None, f"\n{found.violation}"


def test_every_rule_is_dropped_by_at_least_one_test() -> None:
    assert {*DROPS, *SPARES_WORK} == set(Rule)
