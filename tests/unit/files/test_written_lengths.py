"""Acknowledged lengths of open files in the journal: noted in memory, stored with renewals."""

from __future__ import annotations

import pytest

from lockgate.storage_core.files.namespace.journal_blocks import remove_stale
from lockgate.storage_core.files.namespace.queries import file_at, whole_file
from lockgate.storage_core.files.namespace.rows import WrittenLength
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.journal import Leases, Stamp
from tests.support.files.file_world import FileWorld


def stored(world: FileWorld) -> dict[BlockId, int]:
    return {BlockId(row.block): row.length_bytes for row in world.rows(WrittenLength)}


def test_an_acknowledged_length_is_stored_with_the_next_renewal_only(world: FileWorld) -> None:
    files = world.process(block_bytes=100)
    world.begin(b"one", files).close()
    writer = files.append("/a.log")
    writer.write(b"four")
    writer.flush()
    (record,) = world.records("/a.log")
    blocks = writer._blocks
    assert (stored(world), blocks.acknowledged(record.block, record.stamp)) == ({}, 0)
    entries = len(world.entries())

    files.renewer.renew()

    assert blocks.acknowledged(record.block, record.stamp) == 7
    assert blocks.acknowledged(record.block, Stamp(9, 9)) == 0
    with world.journal.reading() as reading:
        (read,) = whole_file(reading, file_at(reading, "/a.log"))
    assert (read.length_bytes, read.acknowledged_bytes) == (3, 7)
    assert len(world.entries()) == entries


def test_a_length_that_has_not_changed_is_not_written_again(
    world: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = world.process(block_bytes=100)
    quiet, busy = (world.begin(b"one", files, path) for path in ("/quiet", "/busy"))
    files.renewer.renew()
    busy.write(b"two")
    busy.flush()
    notes: list[object] = []
    renew = Leases.renew

    def noted(leases: Leases, holder: str, held: dict[str, Stamp], rows: dict[str, WrittenLength]) -> object:
        notes.extend(rows.values())
        return renew(leases, holder, held, rows)

    monkeypatch.setattr(Leases, "renew", noted)
    files.renewer.renew()
    files.renewer.renew()

    assert notes == [busy._blocks.written]
    assert quiet.tell() == 3


def test_the_length_of_a_lost_lease_is_not_stored(world: FileWorld) -> None:
    files = world.process(block_bytes=100)
    writer = world.begin(b"one", files)
    world.take("/a.log", "other")

    files.renewer.renew()

    assert stored(world) == {}
    assert writer.tell() == 3


def test_lengths_of_closed_files_are_removed_and_those_of_open_ones_stay(world: FileWorld) -> None:
    files = world.process(block_bytes=100)
    kept, closed = (world.begin(b"one", files, path) for path in ("/kept", "/closed"))
    files.renewer.renew()
    closed.close()

    remove_stale(world.journal)

    assert stored(world) == {world.records("/kept")[0].block: 3}
    kept.close()
