"""The six invariants of the journal, in whatever order callers, deaths and time come; on both databases.

The same examples on every machine. `LOCKGATE_TEST_LONG=1` draws many more, and others each time;
`LOCKGATE_TEST_NO_SHRINK=1` tells the first failure as it was found.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model_journal.machine import JournalMachine

IS_LONG: Final = bool(os.environ.get("LOCKGATE_TEST_LONG"))
EXAMPLES: Final = settings(
    derandomize=not IS_LONG,
    max_examples=1_000 if IS_LONG else 25,
    stateful_step_count=60 if IS_LONG else 25,
    deadline=None,
    database=None,
    phases=[Phase.generate] if os.environ.get("LOCKGATE_TEST_NO_SHRINK") else tuple(Phase),
    suppress_health_check=list(HealthCheck),
)


def test_a_journal_does_what_its_model_does(journal_url: str) -> None:
    run_state_machine_as_test(type("Machine", (JournalMachine,), {"url": journal_url}), settings=EXAMPLES)
