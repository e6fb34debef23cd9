"""Pruning deletes entries that a verified checkpoint holds, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import event

from lockgate.storage_core.errors import ConflictError, MalformedJournalError, StaleRequestError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Mutation, Refused, Written
from lockgate.storage_core.journal.checkpoint import prune as pruning
from tests.support.journal.checkpoints import JournalWorld, file_of, flip_a_byte, take


def test_only_entries_in_a_verified_checkpoint_are_pruned(journals: JournalWorld) -> None:
    journals.live(1)
    one = journals.checkpoint()
    unverified = journals.prune()
    assert (unverified.up_to, unverified.entries) == (None, 0)
    assert journals.verify().findings == ()
    journals.live(2)
    journals.checkpoint()

    rehearsed, pruned = journals.prune(dry_run=True), journals.prune()

    assert (pruned.up_to, pruned.entries) == (one.stamp, 13)
    assert (rehearsed.up_to, rehearsed.entries, rehearsed.is_dry_run) == (one.stamp, 13, True)
    assert sequences(journals) == list(range(14, 27))
    found = journals.verify()
    assert (found.findings, found.since, found.entries) == ((), one.stamp, 13)


def sequences(journals: JournalWorld) -> list[int]:
    with journals.open() as journal, journal.reading() as reading:
        return [entry.sequence for entry in reading.entries(0, 1000)]


def test_a_pruned_request_is_remembered_for_its_retention_and_refused_after_it(
    journals: JournalWorld,
) -> None:
    mutation = Mutation(op=take("a"), asked_s=journals.clock.now)
    with journals.open() as journal:
        journal.write([mutation])
    journals.checkpoint()
    journals.verify()
    assert journals.prune().requests == 0
    with journals.open() as journal:
        [known] = journal.write([mutation])
    assert isinstance(known, Written)
    assert known.is_repeat

    journals.clock.sleep(90_000)
    assert journals.prune().requests == 1
    with journals.open() as journal:
        [unknown] = journal.write([mutation])

    assert isinstance(unknown, Refused)
    assert isinstance(unknown.error, StaleRequestError)


def test_a_checkpoint_changed_after_its_verification_stops_pruning(journals: JournalWorld) -> None:
    journals.live()
    taken = journals.checkpoint()
    journals.verify()
    flip_a_byte(file_of(journals, taken.stamp))

    with pytest.raises(MalformedJournalError):
        journals.prune()

    assert len(sequences(journals)) == 13


def test_verifying_again_replaces_an_unusable_verification_mark(journals: JournalWorld) -> None:
    journals.live()
    taken = journals.checkpoint()
    journals.verify()
    [word] = (journals.root / "checkpoints/main/verified").iterdir()
    word.write_bytes(word.read_bytes()[:-20])
    with pytest.raises(MalformedJournalError, match="verify again"):
        journals.prune()

    journals.verify()

    assert journals.prune().up_to == taken.stamp


def test_old_checkpoints_are_deleted_and_the_newest_verified_one_is_kept(journals: JournalWorld) -> None:
    stamps = []
    for number in range(4):
        journals.live(number)
        stamps.append(journals.checkpoint().stamp)
        if number == 1:
            journals.verify()

    assert journals.prune(kept=1, dry_run=True).checkpoints == (stamps[0], stamps[2])
    assert len(journals.checkpoints.all()) == 4
    journals.prune(kept=1)

    assert [found.stamp for found in journals.checkpoints.all()] == [stamps[1], stamps[3]]
    assert journals.checkpoints.verified() == [stamps[1]]
    assert journals.verify().findings == ()


def test_a_failover_during_pruning_keeps_the_entries_that_replaced_the_pruned_ones(
    journals: JournalWorld,
) -> None:
    journals.live(1)
    journals.live(2)
    journals.checkpoint()
    journals.verify()

    def fail_over(point: str) -> None:
        if point == "prune.journal-prune.before":
            FAILPOINTS.observer = None
            journals.fail_over(kept=20)
            journals.apply(*(take(f"new {number}") for number in range(10)))

    FAILPOINTS.observer = fail_over
    try:
        with pytest.raises(ConflictError, match=r"checkpoint 1\.26 does not belong to the journal's history"):
            journals.prune()
    finally:
        FAILPOINTS.observer = None

    assert sequences(journals) == list(range(1, 31))


def test_each_slice_reads_only_its_own_entries(
    journals: JournalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "SLICE", 4)
    journals.live()
    journals.checkpoint()
    journals.verify()
    ranges = []

    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, ____: Any) -> None:
        if statement.startswith("DELETE FROM entry"):
            assert re.search(r"sequence > .* AND .*sequence <= ", statement)
            numbers = parameters.values() if isinstance(parameters, dict) else parameters
            ranges.append(tuple(number for number in numbers if isinstance(number, int)))

    with journals.open() as journal:
        event.listen(journal.database._engine, "before_cursor_execute", note)
        found = pruning.prune(journal, journals.checkpoints, kept=5, request_retention_s=86_400.0)
    assert found.entries > 8
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
    assert ranges[-1][1] == found.entries
    assert all(high - low <= 4 for low, high in ranges)
