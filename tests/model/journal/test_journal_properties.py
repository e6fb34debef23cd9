"""Property tests of the six journal invariants on both databases: callers, deaths and time in any order.

`make soak` draws many more examples, see `machine_settings`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.model.journal.life import JournalLifeMachine
from tests.model.journal.loss import JournalLossMachine
from tests.model.journal.machine import JournalMachine
from tests.support.postgres import Server
from tests.support.soak import machine_settings

EXAMPLES: Final = machine_settings(8, 25)
FEW_EXAMPLES: Final = machine_settings(4, 25)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory if possible: its files need not outlive the test, and syncs are slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as root:
        yield Path(root)


def test_a_journal_behaves_like_its_model(journal_url: str) -> None:
    run_state_machine_as_test(type("Machine", (JournalMachine,), {"url": journal_url}), settings=EXAMPLES)


def test_a_journal_that_is_replaced_or_put_back_behaves_like_its_model(journal_url: str) -> None:
    machine = type("Loss", (JournalLossMachine,), {"url": journal_url})
    run_state_machine_as_test(machine, settings=FEW_EXAMPLES)


@pytest.fixture
def new_url(journal_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], str]:
    """Return a function that creates empty databases of the journal's kind."""
    numbers = count(1)
    if journal_url.startswith("sqlite"):
        return lambda: f"sqlite:///{tmp_path / f'restored-{next(numbers)}.db'}"
    server: Server = request.getfixturevalue("postgres")
    return lambda: server.new_database(f"{journal_url.rpartition('/')[2]}_restored_{next(numbers)}")


def test_a_journal_that_is_pruned_restored_and_observed_behaves_like_its_model(
    journal_url: str, new_url: Callable[[], str], tmp_path: Path
) -> None:
    of = {"url": journal_url, "new_url": staticmethod(new_url), "root": tmp_path}
    run_state_machine_as_test(type("Life", (JournalLifeMachine,), of), settings=EXAMPLES)
