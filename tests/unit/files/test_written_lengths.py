"""Acknowledged lengths of open files in the journal: noted in memory, stored with renewals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockgate.storage_core.files.blocks import BlockRecord, Opened
from lockgate.storage_core.files.namespace.file_blocks import OpenFile
from lockgate.storage_core.files.namespace.journal_blocks import JournalBlocks, WrittenLengths, remove_stale
from lockgate.storage_core.files.namespace.queries import whole_file
from lockgate.storage_core.files.namespace.rows import WrittenLength
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId, ReplicaState
from lockgate.storage_core.ids import inode_of
from lockgate.storage_core.journal import Journal, Leases, Stamp
from lockgate.storage_core.journal.leases.renewer import new_holder
from tests.support.journal.checkpoints import JournalWorld

AT = VolumeId("file:///logs")


class Holder:
    """A process that writes files to the volume `AT`, which is not registered."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.name = new_holder()
        self.lengths = WrittenLengths(Leases(journal))
        self.held: dict[str, Stamp] = {}

    def create(self, path: str) -> JournalBlocks:
        op = OpenFile(path=path, mode="create", holder=self.name, soft_s=30, hard_s=60)
        opened: Opened = self.journal.apply(op).result
        blocks = JournalBlocks(self.journal, opened, lambda: (AT,))
        self.held[blocks.resource] = opened.stamp
        self.lengths.watch(blocks)
        return blocks

    def renew(self) -> None:
        assert self.lengths.renew(self.name, self.held) == {}

    def stored(self) -> dict[BlockId, int]:
        with self.journal.reading() as reading:
            return {BlockId(row.block): row.length_bytes for row in reading.where(WrittenLength, {})}


@pytest.fixture
def holder(journals: JournalWorld) -> Iterator[Holder]:
    with journals.open() as journal:
        yield Holder(journal)


def test_an_acknowledged_length_is_stored_with_the_next_renewal_only(holder: Holder) -> None:
    blocks = holder.create("/a")
    record = blocks.add()
    blocks.note_acknowledged(record.block, record.stamp, 7)
    assert blocks.acknowledged(record.block, record.stamp) == 0
    sequence = holder.journal.status().stamp.sequence

    holder.renew()

    assert blocks.acknowledged(record.block, record.stamp) == 7
    assert blocks.acknowledged(record.block, Stamp(9, 9)) == 0
    with holder.journal.reading() as reading:
        (read,) = whole_file(reading, inode_of(blocks.resource))
    assert read.acknowledged_bytes == 7
    assert holder.journal.status().stamp.sequence == sequence


def test_a_length_that_has_not_changed_is_not_written_again(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, busy = holder.create("/quiet"), holder.create("/busy")
    for blocks in (quiet, busy):
        record = blocks.add()
        blocks.note_acknowledged(record.block, record.stamp, 1)
    holder.renew()
    busy.note_acknowledged(record.block, record.stamp, 2)
    notes: list[object] = []
    leases_renew = Leases.renew

    def renew(leases: Leases, name: str, held: dict[str, Stamp], noted: dict[str, WrittenLength]) -> object:
        notes.extend(noted.values())
        return leases_renew(leases, name, held, noted)

    monkeypatch.setattr(Leases, "renew", renew)
    holder.renew()
    holder.renew()

    assert notes == [busy.written]


def test_the_length_of_a_lost_lease_is_not_stored(holder: Holder) -> None:
    blocks = holder.create("/a")
    record = blocks.add()
    blocks.note_acknowledged(record.block, record.stamp, 7)
    Leases(holder.journal).take(blocks.resource, "other", purpose="take over", soft_s=30, hard_s=60)

    assert list(holder.lengths.renew(holder.name, holder.held)) == [blocks.resource]

    assert holder.stored() == {}


def test_lengths_of_closed_files_are_removed_and_those_of_open_ones_stay(holder: Holder) -> None:
    kept, closed = holder.create("/kept"), holder.create("/closed")
    for blocks in (kept, closed):
        record = blocks.add()
        blocks.note_acknowledged(record.block, record.stamp, 7)
    holder.renew()
    closed.commit(BlockRecord(record.block, record.stamp, (AT,), 7, ReplicaState.SEALED))
    closed.close()

    remove_stale(holder.journal)

    (left,) = kept.records()
    assert holder.stored() == {left.block: 7}
