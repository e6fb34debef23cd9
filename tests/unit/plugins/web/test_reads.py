"""What routes read with: known destinations only, no store without a time limit, tokens of callers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.plugins.web.request_reads import AT_ONCE_PER_STORE, Reads
from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.errors import (
    DestinationNotFoundError,
    InvalidInputError,
    StateLostError,
    StoreUnavailableError,
)
from lockgate.storage_core.journal.process_journal import close_journals
from lockgate.storage_core.settings import load_settings

JOB = RecordJob(
    destination="s3://lake/sales",
    job_id="daily-g1",
    name="daily",
    short_id="abc",
    committer="direct",
    mode="append",
    phase="open",
    job_attempt="a1",
    set_up_s=1.0,
)


@pytest.fixture
def reads(tmp_path: Path) -> Iterator[Reads]:
    """Reads of a journal with one job."""
    reads = Reads(load_settings(home=tmp_path / "home", journal_url=f"sqlite:///{tmp_path}/journal.db"))
    reads.client.journal.apply(JOB)
    yield reads
    reads.close()
    close_journals()


def test_a_destination_of_the_journal_is_known_and_no_other(reads: Reads, tmp_path: Path) -> None:
    assert reads.known("s3://lake/sales/") == "s3://lake/sales"
    for other in ("s3://lake", "s3://lake/sales/secret", str(tmp_path), "/etc"):
        with pytest.raises(DestinationNotFoundError):
            reads.known(other)
    with pytest.raises(InvalidInputError):
        reads.known("")


def test_without_a_journal_the_destinations_of_the_host_are_known(tmp_path: Path) -> None:
    reads = Reads(load_settings(home=tmp_path, journal_url="none"), destinations=[str(tmp_path / "out")])
    assert reads.known(str(tmp_path / "out")) == f"file://{tmp_path}/out"
    with pytest.raises(DestinationNotFoundError):
        reads.known(str(tmp_path))
    with pytest.raises(InvalidInputError, match="without a journal"):
        reads.journal(lambda reading: reading.status())
    assert reads.token == ""


def test_a_store_that_does_not_answer_delays_neither_the_route_nor_other_stores(tmp_path: Path) -> None:
    reads, answer = Reads(load_settings(home=tmp_path, journal_url="none")), threading.Event()
    for _ in range(AT_ONCE_PER_STORE):
        with pytest.raises(StoreUnavailableError, match="did not answer in"):
            reads.store("s3://down", answer.wait, limit_s=0.001)
    with pytest.raises(StoreUnavailableError, match="earlier reads"):
        reads.store("s3://down", lambda: 1, limit_s=0.001)
    assert reads.store("s3://up", lambda: 1) == 1
    answer.set()
    assert reads.store("s3://down", lambda: 2) == 2


def test_an_error_of_a_store_is_the_errors_of_the_read(tmp_path: Path) -> None:
    reads = Reads(load_settings(home=tmp_path, journal_url="none"))

    def fail() -> None:
        raise TimeoutError("of the store")

    with pytest.raises(TimeoutError, match="of the store"):
        reads.store("s3://lake", fail)


def test_a_token_from_the_future_fails_its_own_read_only(reads: Reads) -> None:
    stamp = reads.client.journal.status().stamp
    assert reads.at_least(reads.token).journal(lambda reading: reading.status()).stamp == stamp
    with pytest.raises(StateLostError):
        reads.at_least(f"main={stamp.epoch}.{stamp.sequence + 9}").journal(lambda reading: reading.status())
    with pytest.raises(StateLostError):
        reads.at_least("main=99.1").journal(lambda reading: reading.status())
    assert reads.journal(lambda reading: reading.status()).stamp == stamp
