"""No transaction about many blobs, tasks or names touches more rows than a page."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from lockgate import attach_job, open_job
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.registry import queries
from lockgate.storage_core.blobs.registry.blob_rows import Blob
from lockgate.storage_core.blobs.registry.references import FinishBlobJob
from lockgate.storage_core.blobs.registry.upload_sets import upload_resource
from lockgate.storage_core.blobs.server import open_upload_sets as upload_sets
from lockgate.storage_core.blobs.sweep import sweep
from lockgate.storage_core.commit.leases import registration
from lockgate.storage_core.commit.recovery.registry_rebuild import rescan
from lockgate.storage_core.commit.registry.entries import RecordTask
from lockgate.storage_core.commit.registry.rows import Job, TaskAttempt
from lockgate.storage_core.journal import Journal, Mutation, WriteOutcome, claims
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.claims import Claims
from lockgate.storage_core.journal.entries.lease_entries import FreeLease
from lockgate.storage_core.journal.entries.state import Rows, State
from lockgate.storage_core.journal.write import transaction
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.blobs.server import blob_world
from tests.support.journal.many_blobs import keys_of, put, set_up, sets_of, steps_to_abandon, upload

PAGE = 3
KEYS = keys_of(60)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = (
        (queries, "PAGE"),
        (upload_sets, "PAGE"),
        (sweep, "PAGE"),
        (registration, "AT_ONCE"),
        (claims, "PAGE"),
    )
    for module, name in pages:
        monkeypatch.setattr(module, name, PAGE)


@pytest.fixture
def settings(tmp_path: Path, journal_url: str) -> Settings:
    return load_settings(home=tmp_path / "home", journal_url=journal_url)


@pytest.fixture
def most_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that gives the most rows that one transaction read or changed since the last call."""
    states = list[State]()

    class Counted(State):
        def __init__(self, rows: Rows) -> None:
            super().__init__(rows)
            states.append(self)

    def most() -> int:
        found = max(len(state._read.keys() | state._changed.keys()) for state in states)
        states.clear()
        return found

    monkeypatch.setattr(transaction, "State", Counted)
    return most


def registered(journal: Journal) -> list[Job]:
    with journal.reading() as reading:
        return list(reading.where(Job, {}))


def record_tasks(journal: Journal, job: Job, number: int) -> None:
    attempt = RecordTask(
        destination=job.destination, job_id=job.job_id, task_id="", attempt_id="a", job_attempt="",
        files=1, rows=1, size_bytes=1,
    )  # fmt: skip
    for task in range(number):
        journal.apply(msgspec.structs.replace(attempt, task_id=f"part-{task}"))


def empty(lake: Path) -> None:
    shutil.rmtree(lake)
    lake.mkdir()


def check_replay(journal: Journal, tmp_path: Path) -> None:
    with journal.reading() as reading:
        assert verify(reading, Checkpoints(LocalStore(tmp_path / "cp"), "main")).findings == ()


def test_no_transaction_about_a_job_of_many_blobs_touches_more_than_a_page(
    journal: Journal, tmp_path: Path, settings: Settings, most_rows: Callable[[], int]
) -> None:
    at_most = 2 * PAGE + 8  # of each blob the row and a reference; the job, its lease, holder and totals
    most = dict[str, int]()

    def measured(what: str) -> None:
        most[what] = most_rows()

    sets = sets_of(journal)
    opened, _ = sets.take("uploader", "up-1")
    put(journal, opened, KEYS)
    most_rows()
    assert sets.complete(opened) == len(KEYS)
    measured("an upload set is completed")
    set_up(tmp_path, settings, KEYS)
    measured("a job takes its artefacts")
    set_up(tmp_path, settings, KEYS)
    measured("another driver releases them and takes them")
    [known] = registered(journal)
    record_tasks(journal, known, len(KEYS))
    measured("tasks are recorded")
    attach_job(str(tmp_path / "lake"), known.job_id, settings=settings).abort()
    measured("the job ends")
    empty(tmp_path / "lake")
    list(rescan(known.destination, settings=settings))
    measured("the job is forgotten")
    another, stamp = sets.take("another", "up-2")
    put(journal, another, KEYS, "up-2")
    journal.apply(FreeLease(resource=upload_resource(another), stamp=stamp))
    most_rows()
    for step in steps_to_abandon(journal, another):
        journal.apply(step)
    measured("an upload set is abandoned")

    assert {what: rows for what, rows in most.items() if rows > at_most} == {}
    check_replay(journal, tmp_path)


def test_a_rescan_that_forgets_many_jobs_deletes_at_most_a_page_of_their_tasks_at_once(
    journal: Journal, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        open_job(str(tmp_path / "lake"), f"sales-{number}", settings=settings).abort()
    for job in registered(journal):
        record_tasks(journal, job, PAGE - 1)
    destination = registered(journal)[0].destination
    empty(tmp_path / "lake")
    deleted = list[State]()
    ready = State.delete

    def count(self: State, row: object) -> None:
        ready(self, row)  # type: ignore[arg-type]
        if isinstance(row, TaskAttempt):
            deleted.append(self)  # kept, so that no later one has its id

    monkeypatch.setattr(State, "delete", count)
    list(rescan(destination, settings=settings))

    assert registered(journal) == []
    assert len(deleted) == 6 * (PAGE - 1)
    assert max(Counter(map(id, deleted)).values()) <= PAGE
    check_replay(journal, tmp_path)


def test_names_of_a_destination_are_forgotten_page_by_page(
    journal: Journal, most_rows: Callable[[], int]
) -> None:
    names = [f"job-{number}" for number in range(10)]
    claimed = Claims(journal, "s3://lake/sales")
    for name in names:
        claimed.take(name, "{}")
    most_rows()

    assert claimed.release(names) == len(names)

    assert claimed.names() == []
    assert most_rows() <= PAGE


def test_a_sweep_of_an_ended_job_writes_at_most_a_page_of_entries_at_once(
    tmp_path: Path, journal_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[int]()
    ready = Journal.write

    def count(self: Journal, mutations: Sequence[Mutation]) -> list[WriteOutcome]:
        written.append(len(mutations))
        return ready(self, mutations)

    with blob_world(tmp_path, journal_url, with_ha=False) as world:
        upload(world.journal, KEYS)
        world.server.submit("up-1", [BlobKey(key) for key in KEYS])
        world.journal.apply(FinishBlobJob(job_id="up-1"))
        monkeypatch.setattr(Journal, "write", count)
        world.server.sweep(dry_run=False)

        with world.journal.reading() as reading:
            assert not reading.where(Blob, {})
    assert max(written) <= PAGE
