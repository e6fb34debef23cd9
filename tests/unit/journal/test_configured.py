"""The configured journal is opened once in a process, and again in each fork."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.errors import JournalUnavailableError
from lockgate.storage_core.journal import Journal, open_journal, process_journal
from lockgate.storage_core.journal.entries.lease_entries import TakeLease
from lockgate.storage_core.journal.process_journal import close_journals, configured_journal
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.commit.destination import ManualClock


def opened(settings: Settings, clock: ManualClock | SystemClock | None = None) -> Journal:
    journal = configured_journal(settings, clock)
    assert journal is not None
    return journal


def test_without_a_setting_the_journal_is_a_file_below_home(tmp_path: Path) -> None:
    journal = opened(load_settings(home=tmp_path / "home", journal_url=None))

    assert (tmp_path / "home/journal.db").is_file()
    assert journal.url == f"sqlite:///{tmp_path}/home/journal.db"


def test_no_journal_is_opened_if_the_settings_disable_it(tmp_path: Path) -> None:
    assert configured_journal(load_settings(home=tmp_path, journal_url="none")) is None
    assert list(tmp_path.iterdir()) == []


def test_all_callers_share_one_journal(tmp_path: Path) -> None:
    settings, clock = load_settings(home=tmp_path), ManualClock()

    assert opened(settings) is opened(settings, SystemClock())
    assert opened(settings, clock) is opened(settings, clock)
    assert opened(settings, clock) is not opened(settings, ManualClock())
    assert opened(settings) is not opened(load_settings(home=tmp_path, journal="logs"))


def test_a_closed_journal_is_opened_again(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    first = opened(settings)
    close_journals()

    assert opened(settings) is not first
    assert opened(settings).identity == first.identity


def test_a_fork_opens_its_own_journal_and_writes_alongside_its_parent(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
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


class Slow:
    """A server whose connections time out slowly, with the clock that this advances."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.now_s = 0.0
        self.attempts = 0

    def open_journal(self, url: str, name: str, *, clock: object) -> Journal:
        self.attempts += 1
        self.now_s += self.takes_s
        raise JournalUnavailableError(f"journal {url}: connection timeout expired")

    def stands_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process_journal, "open_journal", self.open_journal)
        monkeypatch.setattr(process_journal, "monotonic", lambda: self.now_s)


def test_not_every_caller_waits_for_a_journal_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, settings = Slow(takes_s=10.0), load_settings(home=tmp_path)
    slow.stands_in(monkeypatch)
    for _ in range(5):
        with pytest.raises(JournalUnavailableError, match="timeout expired"):
            opened(settings)
    with pytest.raises(JournalUnavailableError, match="it is asked again in 30 s"):
        opened(settings)
    assert (slow.attempts, slow.now_s) == (1, 10.0)

    slow.now_s += process_journal.REST_S
    monkeypatch.setattr(process_journal, "open_journal", open_journal)
    assert opened(settings).status().stamp.sequence == 0
