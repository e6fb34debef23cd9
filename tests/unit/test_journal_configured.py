"""The journal that the settings name is opened once in a process, and again in its forks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.clock import SystemClock
from storage_core.journal import Journal
from storage_core.journal.configured import close_journals, configured_journal
from storage_core.journal.ops.leases import TakeLease
from storage_core.settings import Settings
from tests.commit_world import ManualClock


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_journals()


def opened(settings: Settings, clock: ManualClock | SystemClock | None = None) -> Journal:
    journal = configured_journal(settings, clock)
    assert journal is not None
    return journal


def test_without_a_setting_the_journal_is_a_file_below_home(tmp_path: Path) -> None:
    journal = opened(Settings(home=tmp_path / "home", journal_url=None))

    assert (tmp_path / "home/journal.db").is_file()
    assert journal.url == f"sqlite:///{tmp_path}/home/journal.db"


def test_there_is_none_where_the_settings_say_so(tmp_path: Path) -> None:
    assert configured_journal(Settings(home=tmp_path, journal_url="none")) is None
    assert list(tmp_path.iterdir()) == []


def test_all_that_ask_share_one(tmp_path: Path) -> None:
    settings, clock = Settings(home=tmp_path), ManualClock()

    assert opened(settings) is opened(settings, SystemClock())
    assert opened(settings, clock) is opened(settings, clock)
    assert opened(settings, clock) is not opened(settings, ManualClock())
    assert opened(settings) is not opened(Settings(home=tmp_path, journal="logs"))


def test_after_closing_it_is_opened_anew(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    first = opened(settings)
    close_journals()

    assert opened(settings) is not first
    assert opened(settings).identity == first.identity


def test_a_fork_opens_its_own_and_writes_beside_its_parent(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    first = opened(settings)
    take = TakeLease(resource="file:a", holder="parent", purpose="take over", soft_s=1, hard_s=2)
    first.apply(take)

    child = os.fork()
    if child == 0:
        try:
            own = opened(settings)
            os._exit(0 if own is not first and own.apply(take).stamp.sequence == 2 else 1)
        finally:
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert opened(settings) is first
    assert first.apply(take).stamp.sequence == 3
