"""Propagation of session tokens between processes, for open journals and others."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from lockgate.storage_core.errors import StateLostError
from lockgate.storage_core.journal import Journal, Reading, Stamp, open_journal
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.process_journal import close_journals, configured_journal, extract, inject
from lockgate.storage_core.journal.session_token import AT_LEAST_HEADER, SessionToken
from lockgate.storage_core.settings import Settings, load_settings
from tests.support.journal.observers import FileObserver, Replication, take


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home")


def opened(settings: Settings) -> Journal:
    journal = configured_journal(settings)
    assert journal is not None
    return journal


def at_least(journal: Journal, stamp: str) -> dict[str, str]:
    return {"Lockgate-At-Least": f"main@{journal.identity}={stamp}"}


def test_a_process_injects_the_stamp_it_wrote_under_the_journals_name_and_identity(here: Settings) -> None:
    journal = opened(here)
    stamp = take(journal)
    assert inject() == {AT_LEAST_HEADER: f"main@{journal.identity}={stamp}"}


def test_a_stamp_extracted_before_the_journal_opens_is_passed_on_and_counts_once_it_is_open(
    here: Settings,
) -> None:
    headers = at_least(opened(here), "1.7")
    close_journals()

    extract(headers)

    assert SessionToken.from_headers(inject()) == SessionToken.from_headers(headers)
    assert opened(here).seen == Stamp(1, 7)


def test_a_read_is_not_older_than_the_extracted_stamp(here: Settings, tmp_path: Path) -> None:
    journal, file = opened(here), tmp_path / "observer.db"
    take(journal)
    Replication(Path(journal.database.url.database or ""), file).poll()
    with Client(journal, [FileObserver(file, journal)], wait_ms=0.0) as reads:
        assert reads.read(newest) == Stamp(1, 1)
        with open_journal(journal.url) as another_process:
            headers = at_least(journal, str(take(another_process)))
        assert reads.read(newest) == Stamp(1, 1)
        extract(headers)
        assert reads.read(newest) == Stamp(1, 2)


def newest(reading: Reading) -> Stamp:
    return reading.status().stamp


def test_a_stamp_of_another_journal_with_the_same_name_is_ignored(here: Settings) -> None:
    other = {AT_LEAST_HEADER: f"main@{'0' * 32}=9.9"}
    extract(other)
    journal = opened(here)
    stamp = take(journal)
    extract(other)
    assert journal.seen == stamp
    assert inject() == {AT_LEAST_HEADER: f"main@{journal.identity}={stamp}"}


@pytest.mark.parametrize("text", ["nonsense", "main=1.1;drop", 7])
def test_a_header_that_is_not_a_token_is_ignored_with_a_warning(
    here: Settings, caplog: pytest.LogCaptureFixture, text: object
) -> None:
    stamp = take(opened(here))
    with caplog.at_level(logging.WARNING):
        extract({AT_LEAST_HEADER: text, 5: "of another kind"})  # type: ignore[dict-item]
    assert "it is ignored: a read may be older" in caplog.text
    assert opened(here).seen == stamp


def test_a_stamp_lost_in_a_failover_is_no_longer_injected_after_an_msync(here: Settings) -> None:
    extract(at_least(opened(here), "7.7"))
    with configured_reads(here) as reads:  # type: ignore[union-attr]
        with pytest.raises(StateLostError):
            reads.read(newest)
        reads.msync()
        reads.read(newest)
    take(opened(here))
    assert inject()[AT_LEAST_HEADER].endswith("=1.1")


def test_a_fork_inherits_the_stamps_its_parent_has_seen(here: Settings) -> None:
    journal = opened(here)
    take(journal)
    extract({AT_LEAST_HEADER: f"logs@{'1' * 32}=2.2"})
    headers = inject()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, inject().get(AT_LEAST_HEADER, "").encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        assert {AT_LEAST_HEADER: pipe.read()} == headers
