"""Stores that are busy or lack a capability: a job ends correctly, or its error names the capability."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import StoreUnavailableError, UnsupportedStoreError
from tests.support.commit.destination import write
from tests.support.fake_s3 import Options, faults
from tests.support.s3.destination import S3World, s3_world

OLD = {"old.csv": b"0"}
NEW = {"day=1/a.csv": b"1", "b.csv": b"2" * (5 * 1024 * 1024 + 1)}
OPERATIONS = (
    "PutObject",
    "GetObject",
    "HeadObject",
    "ListObjectsV2",
    "ListMultipartUploads",
    "CreateMultipartUpload",
    "UploadPart",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
    "DeleteObject",
    "DeleteObjects",
)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch) as world:
        yield world


def job(s3: S3World) -> None:
    """Run a job that makes every kind of request: it replaces files and aborts an unselected upload."""
    with s3.driver.open_job("new", mode="replace") as opened:
        loser = opened.attempt("t")
        with loser.open("loser.csv") as file:
            file.write(b"loser")
        write(opened, "t", NEW)
        opened.commit()


@pytest.mark.parametrize("nth", [1, 3, 8])
@pytest.mark.parametrize("fault", [faults.SLOW_DOWN, faults.INTERNAL_ERROR], ids=lambda fault: fault.name)
def test_every_call_survives_two_5xx_answers(s3: S3World, fault: faults.Fault, nth: int) -> None:
    s3.driver.run("old", OLD)
    s3.fake.faults.clear()
    for operation in OPERATIONS:
        s3.fake.faults.at(fault, operation=operation, nth=nth, times=2)
    job(s3)
    s3.fake.faults.clear()
    assert s3.other.visible() == NEW
    assert s3.other.live() == s3.other.keys()
    assert s3.other.open_uploads() == []
    assert s3.other.attach("new-g1").phase() is JobPhase.COMMITTED


def test_calls_to_a_throttling_store_back_off_and_the_job_succeeds(s3: S3World) -> None:
    began_s = s3.driver.clock.now_s()
    s3.driver.run("old", OLD)
    s3.fake.faults.at(faults.SLOW_DOWN, operation="CompleteMultipartUpload", times=4)
    job(s3)
    assert s3.other.visible() == NEW
    # Each retry waits twice as long as the previous one.
    assert s3.driver.clock.now_s() - began_s >= 0.2 + 0.4


def test_a_store_that_throttles_for_long_leaves_the_job_undecided_for_a_retry(s3: S3World) -> None:
    job = s3.driver.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    s3.fake.faults.clear()
    s3.fake.faults.at(faults.SLOW_DOWN, operation="ListObjectsV2", times=100)
    with pytest.raises(StoreUnavailableError, match="SlowDown"):
        job.commit()
    s3.fake.faults.clear()
    assert job.phase() is JobPhase.OPEN
    job.commit()
    assert s3.other.visible() == {"a.csv": b"1"}


def test_a_store_without_conditional_create_is_refused_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(conditional_create=False)
    with s3_world(tmp_path, monkeypatch, options, journal_url="none") as s3:
        with pytest.raises(UnsupportedStoreError, match=r"no conditional create.*LOCKGATE_JOURNAL_URL"):
            s3.driver.open_job("sales")
        assert s3.fake.snapshot().objects == {}
        assert s3.fake.snapshot().uploads == {}


@pytest.mark.parametrize("repeated", ["succeeds", "no such upload"])
def test_a_job_accepts_either_answer_to_a_repeated_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: str
) -> None:
    with s3_world(tmp_path, monkeypatch, Options(repeated_completion=repeated)) as s3:  # type: ignore[arg-type]
        s3.driver.run("old", OLD)
        s3.fake.faults.clear()
        s3.fake.faults.at(faults.TIMED_OUT.after_the_effect(), operation="CompleteMultipartUpload", times=2)
        job(s3)
        assert s3.other.visible() == NEW
        assert s3.other.live() == s3.other.keys()


def test_listings_in_pages_of_one_find_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_world(tmp_path, monkeypatch, Options(page_size=1)) as s3:
        s3.driver.run("old", OLD)
        job(s3)
        assert s3.other.visible() == NEW
        assert s3.other.live() == s3.other.keys()
        assert s3.other.open_uploads() == []


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload", "DeleteObject"])
def test_a_probe_call_without_an_answer_does_not_count_as_a_missing_capability(
    s3: S3World, operation: str
) -> None:
    s3.fake.faults.at(faults.TIMED_OUT.after_the_effect(), operation=operation, nth=2, times=2)
    s3.driver.run("sales", NEW)
    assert s3.other.visible() == NEW
    assert s3.other.attach("sales-g1").store.capabilities.conditional_delete
