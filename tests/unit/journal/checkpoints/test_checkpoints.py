"""Checkpoints: their contents, creation exactly once, and a snapshot that stays open during slow uploads."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from lockgate.storage_core.errors import ConflictError, MalformedJournalError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Mutation, Stamp, Written
from lockgate.storage_core.journal.checkpoint.checkpoints import Checkpoints
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.journal.write.head import EPOCH_STEP
from tests.support.journal.checkpoints import JournalWorld, file_of, take
from tests.support.postgres import Server


def test_a_checkpoint_is_named_by_its_stamp_and_created_once(journals: JournalWorld) -> None:
    journals.live()

    first, again = journals.checkpoint(), journals.checkpoint()

    assert first == again
    assert first.stamp == Stamp(1, 13)
    assert file_of(journals, first.stamp).name == "000000000000000001.000000000000000013.jsonl.zst"


def test_a_restored_journal_holds_every_row_and_every_lease(journals: JournalWorld) -> None:
    journals.live()
    journals.checkpoint()

    restored = journals.restore()

    assert (restored.checkpoint, restored.entries, restored.stamp) == (Stamp(1, 13), 0, Stamp(EPOCH_STEP, 13))
    assert journals.rows(journals.spare_url) == journals.rows()
    assert len(journals.rows()["lease"]) == 3


def test_a_request_answered_before_the_checkpoint_gets_the_same_answer_after_a_restore(
    journals: JournalWorld,
) -> None:
    mutation = Mutation(op=take("a"), asked_s=journals.clock.now)
    with journals.open() as journal:
        [first] = journal.write([mutation])
    journals.checkpoint()
    journals.restore()

    with journals.open(journals.spare_url) as journal:
        [again] = journal.write([mutation])

    assert isinstance(first, Written)
    assert isinstance(again, Written)
    assert (again.stamp, again.result, again.is_repeat) == (first.stamp, first.result, True)


def test_another_journal_with_the_same_name_cannot_store_its_checkpoints_in_the_same_place(
    journals: JournalWorld,
) -> None:
    journals.live()
    journals.checkpoint()

    with pytest.raises(MalformedJournalError, match=r"another journal.*LOCKGATE_CHECKPOINT_URL"):
        journals.checkpoint(journals.spare_url)


def test_a_checkpoint_pruned_right_after_its_creation_is_reported(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals.live()
    create = Checkpoints.create

    def create_and_lose(checkpoints: Checkpoints, stamp: Stamp, file: IO[bytes]) -> bool:
        is_new = create(checkpoints, stamp, file)
        checkpoints.delete(stamp)
        return is_new

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "create", create_and_lose)
        with pytest.raises(ConflictError, match=r"checkpoint 1\.13 .* was pruned .* take another"):
            journals.checkpoint()
    assert journals.checkpoint().stamp == Stamp(1, 13)


def test_a_snapshot_larger_than_a_part_is_uploaded_in_parts(journals: JournalWorld) -> None:
    from lockgate.storage_core.journal.checkpoint.checkpoints import take_checkpoint
    from lockgate.storage_core.stores import open_store

    journals.live()
    small = Checkpoints(open_store(str(journals.root / "checkpoints")), "main", part_bytes=100)
    with journals.open() as journal, journal.reading() as reading:
        taken, is_new = take_checkpoint(reading, small)

    assert is_new
    assert taken.size > 100
    journals.restore()
    assert journals.rows(journals.spare_url) == journals.rows()


@pytest.mark.requires("postgres")
@pytest.mark.parametrize(
    ("work", "call"),
    [
        ("checkpoint", "checkpoint.create.before"),
        ("restore", "restore.get.after"),
    ],
)
def test_postgresql_keeps_a_snapshot_open_however_slow_a_store_call_is(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, call: str
) -> None:
    url, spare_url = (postgres.new_database(f"slow_{work}_{name}") for name in ("first", "spare"))
    journals = JournalWorld(tmp_path, url, spare_url)
    journals.live(1)
    journals.checkpoint()
    journals.verify()
    journals.live(2)
    held: list[Reading] = []
    limits: list[str] = []

    def hold(reading: Reading) -> None:
        stay_open(reading)
        held.append(reading)

    def look(point: str) -> None:
        if point == call:
            question = "SHOW idle_in_transaction_session_timeout"
            limits.extend(reading.connection.exec_driver_sql(question).scalar_one() for reading in held)

    stay_open = Reading.stay_open
    monkeypatch.setattr(Reading, "stay_open", hold)
    FAILPOINTS.observer = look
    try:
        journals.restore(with_entries=True) if work == "restore" else getattr(journals, work)()
    finally:
        FAILPOINTS.observer = None

    assert set(limits) == {"0"}
