"""A job of many blobs takes and ends them page by page, so that no writer waits for all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockgate import open_job
from lockgate.storage_core.blobs.keys import UploadSetId
from lockgate.storage_core.blobs.registry import queries
from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Reference, UploadSet
from lockgate.storage_core.blobs.server import open_upload_sets as upload_sets
from lockgate.storage_core.commit.leases import registration
from lockgate.storage_core.commit.recovery import registry_rebuild
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.commit.registry.entries import RecordJob, RecordTask
from lockgate.storage_core.commit.registry.rows import Job, TaskAttempt
from lockgate.storage_core.errors import ArtefactsGoneError, ConflictError, FencedError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, Mutation, WriteOutcome
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.read.snapshot_read import Entry
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.journal.many_blobs import UPLOAD, keys_of, put, set_up, sets_of, steps_to_abandon, upload

KEYS = keys_of(7)
PAGE = 3


class Died(BaseException):
    """The death of a process."""


@contextmanager
def dying_before_write(number: int) -> Iterator[None]:
    """Die before a write to the journal, counted from 1."""
    written = 0

    def die(point: str) -> None:
        nonlocal written
        written += point.endswith("journal-write.before")
        if written == number:
            raise Died

    FAILPOINTS.observer = die
    try:
        yield
    finally:
        FAILPOINTS.observer = None


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((queries, "PAGE"), (upload_sets, "PAGE"), (registration, "AT_ONCE")):
        monkeypatch.setattr(module, name, PAGE)


@pytest.fixture
def settings(tmp_path: Path, journal_url: str) -> Settings:
    return load_settings(home=tmp_path / "home", journal_url=journal_url)


def entries(journal: Journal, *tags: str) -> list[Entry]:
    with journal.reading() as reading:
        return [entry for entry in reading.entries(0, 1000) if entry.op in tags]


def referenced(journal: Journal) -> list[str]:
    with journal.reading() as reading:
        return [row.blob_key for row in reading.where(Reference, {"job_id": UPLOAD})]


def check_replay(journal: Journal, tmp_path: Path) -> None:
    with journal.reading() as reading:
        assert verify(reading, Checkpoints(LocalStore(tmp_path / "cp"), "main")).findings == ()


def longest(entries: list[Entry]) -> int:
    """Return the greatest number of blobs that one entry names."""
    return max(sum(key in entry.payload for key in KEYS) for entry in entries)


def test_a_job_takes_its_artefacts_page_by_page_and_another_driver_releases_them_so(
    journal: Journal, tmp_path: Path, settings: Settings
) -> None:
    assert upload(journal, KEYS) == len(KEYS)
    set_up(tmp_path, settings, KEYS)
    assert referenced(journal) == KEYS
    taken = entries(journal, "take-artefacts")
    assert (len(taken), longest(taken)) == (3, PAGE)

    set_up(tmp_path, settings, KEYS)

    assert referenced(journal) == KEYS
    assert len(entries(journal, "take-artefacts")) == 6
    released = entries(journal, "fail-blob-job")
    assert (len(released), longest(released)) == (3, PAGE)
    assert [entry.result for entry in released] == ["3", "3", "1"]
    second = entries(journal, "record-job")[1]
    assert released[-1].sequence < second.sequence
    check_replay(journal, tmp_path)


@pytest.mark.parametrize(("first", "second"), [(2, None), (3, 2), (3, 5)])
def test_a_driver_that_dies_between_two_pages_leaves_an_open_job_that_another_driver_sets_up(
    journal: Journal, tmp_path: Path, settings: Settings, first: int, second: int | None
) -> None:
    upload(journal, KEYS)
    with pytest.raises(Died), dying_before_write(first):
        set_up(tmp_path, settings, KEYS)
    if second is not None:  # it also releases what the first one left
        with pytest.raises(Died), dying_before_write(second):
            set_up(tmp_path, settings, KEYS)
    with journal.reading() as reading:
        assert all(job.final_s is None for job in reading.where(BlobJob, {}))

    set_up(tmp_path, settings, KEYS)

    assert referenced(journal) == KEYS
    check_replay(journal, tmp_path)


@pytest.mark.parametrize("write", [2, 4])
def test_a_stalled_driver_releases_and_records_nothing_once_another_has_taken_over(
    journal: Journal, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    upload(journal, KEYS)
    set_up(tmp_path, settings, KEYS)
    ready = Journal.write
    written, newest = 0, ""

    def registered() -> str:
        with journal.reading() as reading:
            [job] = reading.where(Job, {})
        return job.job_attempt

    def stall(self: Journal, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
        nonlocal written, newest
        written += 1
        if written == write:
            set_up(tmp_path, settings, KEYS)
            newest = registered()
        return ready(self, mutations)

    monkeypatch.setattr(Journal, "write", stall)
    with pytest.raises(FencedError, match="is lost"):
        set_up(tmp_path, settings, KEYS)

    assert referenced(journal) == KEYS
    assert registered() == newest
    check_replay(journal, tmp_path)


def test_a_job_whose_last_page_is_gone_is_refused_and_ends_with_what_it_took(
    journal: Journal, tmp_path: Path, settings: Settings
) -> None:
    upload(journal, KEYS)
    with journal.database.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM blob WHERE blob_key = '{KEYS[-1]}'")
    with pytest.raises(ArtefactsGoneError):
        set_up(tmp_path, settings, KEYS)
    with journal.reading() as reading:
        [job] = reading.where(BlobJob, {})
    assert job.final_s is not None


def test_an_upload_set_is_completed_page_by_page_and_its_end_stages_what_a_crash_left(
    journal: Journal,
) -> None:
    sets = sets_of(journal)
    opened, _ = sets.take("uploader", UPLOAD)
    put(journal, opened, KEYS)
    with pytest.raises(Died), dying_before_write(2):
        sets.complete(opened)
    with journal.reading() as reading:
        left = [blob.blob_key for blob in reading.where(Blob, {"upload_set": opened})]
    assert left == KEYS[PAGE:]

    assert sets.complete(opened) == len(left)

    with journal.reading() as reading:
        assert all(blob.staged_s is not None for blob in reading.where(Blob, {}))
    assert [longest([entry]) for entry in entries(journal, "stage-uploaded")] == [PAGE, PAGE]
    assert len(entries(journal, "complete-upload")) == 1


def abandon(
    journal: Journal, upload_set: UploadSetId, *, lapsed: bool = False, dies_before: int | None = None
) -> None:
    """Give up a set as a sweep does; die before a write, counted from 1."""
    steps = steps_to_abandon(journal, upload_set, lapsed=lapsed)
    with nullcontext() if dies_before is None else dying_before_write(dies_before):
        for step in steps:
            journal.apply(step)


def test_an_upload_set_is_abandoned_page_by_page_and_another_sweep_goes_on_after_a_crash(
    journal: Journal, tmp_path: Path
) -> None:
    sets = sets_of(journal)
    opened, stamp = sets.take("uploader", UPLOAD)
    put(journal, opened, KEYS)
    with pytest.raises(Died):
        abandon(journal, opened, lapsed=True, dies_before=2)

    assert sets.renew("uploader", {opened: stamp}), "its uploader must not renew it any more"
    with journal.reading() as reading:
        assert [row.blob_key for row in reading.where(Blob, {"upload_set": opened})] == KEYS[PAGE:]
        assert reading.get(UploadSet, opened) is not None
    abandon(journal, opened)

    with journal.reading() as reading:
        assert all(blob.staged_s is not None for blob in reading.where(Blob, {}))
        assert reading.get(UploadSet, opened) is None
    assert [longest([entry]) for entry in entries(journal, "abandon-upload")] == [PAGE, PAGE, 0]
    check_replay(journal, tmp_path)


def test_a_page_of_a_set_whose_uploader_lives_is_not_staged(journal: Journal) -> None:
    sets = sets_of(journal)
    opened, _ = sets.take("uploader", UPLOAD)
    put(journal, opened, KEYS)
    with pytest.raises(ConflictError, match="lives"):
        abandon(journal, opened)
    with journal.reading() as reading:
        assert all(blob.staged_s is None for blob in reading.where(Blob, {}))


@pytest.mark.parametrize("dies_before", [None, 3])
def test_a_rescan_forgets_a_job_page_by_page_and_another_one_goes_on_after_a_crash(
    journal: Journal, tmp_path: Path, settings: Settings, dies_before: int | None
) -> None:
    job = open_job(str(tmp_path / "lake"), "sales", settings=settings)
    with journal.reading() as reading:
        [known] = reading.where(Job, {})
    attempt = RecordTask(
        destination=known.destination, job_id=known.job_id, task_id="", attempt_id="a", job_attempt="",
        files=1, rows=1, size_bytes=1,
    )  # fmt: skip
    tasks = [Mutation(op=msgspec.structs.replace(attempt, task_id=f"part-{key[-2:]}")) for key in KEYS]
    journal.write(tasks)
    job.abort()
    shutil.rmtree(tmp_path / "lake")
    (tmp_path / "lake").mkdir()
    if dies_before is not None:
        with pytest.raises(Died), dying_before_write(dies_before):
            list(rescan(known.destination, settings=settings))

    list(rescan(known.destination, settings=settings))

    with journal.reading() as reading:
        assert (reading.where(Job, {}), reading.where(TaskAttempt, {})) == ([], [])
    forgotten = entries(journal, "forget-job")
    assert [entry.payload.count("part-") for entry in forgotten] == [PAGE, PAGE, 1, 0]
    check_replay(journal, tmp_path)


def test_a_rescan_that_looked_before_another_driver_registered_releases_nothing_of_it(
    journal: Journal, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(journal, KEYS)
    set_up(tmp_path, settings, KEYS)
    with journal.reading() as reading:
        [known] = reading.where(Job, {})
    ready = registry_rebuild.record_job

    def by_an_earlier_driver(*arguments: Any) -> RecordJob:
        return msgspec.structs.replace(ready(*arguments), job_attempt="earlier", name="differs")

    monkeypatch.setattr(registry_rebuild, "record_job", by_an_earlier_driver)
    list(rescan(known.destination, settings=settings))

    assert entries(journal, "record-job")[-1].payload.count('"earlier"') == 1
    assert referenced(journal) == KEYS
    check_replay(journal, tmp_path)
