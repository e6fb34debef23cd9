"""A wall clock that jumps closes no live upload set, and keeps none of a dead uploader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs.keys import UploadSetId
from lockgate.storage_core.blobs.registry.blob_rows import UploadSet
from lockgate.storage_core.blobs.registry.upload_sets import AbandonUpload, upload_resource
from lockgate.storage_core.blobs.server.open_upload_sets import HARD_S
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.journal import Leases
from lockgate.storage_core.journal.entries.lease_entries import Seen
from lockgate.storage_core.lease_watch import LEASE_WATCH
from tests.support.blobs.server import BlobWorld, blob_world

HOUR_S = 3_600.0


@pytest.fixture
def world(tmp_path: Path, journal_url: str) -> Iterator[BlobWorld]:
    with blob_world(tmp_path, journal_url) as world:
        yield world


def uploading(world: BlobWorld) -> UploadSetId:
    """Return a set of an uploader that has put a blob."""
    upload_set = world.server.begin_set("sales")
    world.server.put(b"half of it", job_id="sales", upload_set=upload_set)
    return upload_set


def abandoned(world: BlobWorld) -> int:
    return world.server.sweep(dry_run=False, orphans=False).abandoned_sets


def in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which leases this process has seen."""
    monkeypatch.setattr(LEASE_WATCH, "_seen", {})


def test_a_clock_that_jumps_an_hour_forward_leaves_a_live_uploader_its_set(world: BlobWorld) -> None:
    upload_set = uploading(world)
    for _ in range(2):
        world.clock.jump(HOUR_S)
        assert world.server.sweep(dry_run=True).abandoned_sets == 0
        assert abandoned(world) == 0
    world.server.sets.renewer.renew()
    world.server.put(b"the other half", job_id="sales", upload_set=upload_set)
    assert world.server.complete_set(upload_set) == 2


def test_a_dead_uploader_loses_its_set_one_limit_after_the_clock_was_set_back(world: BlobWorld) -> None:
    uploading(world)
    world.clock.jump(-HOUR_S)
    assert abandoned(world) == 0
    world.clock.sleep(HARD_S)
    assert abandoned(world) == 1


def test_sweeps_that_are_processes_of_their_own_give_up_the_set_of_a_dead_uploader(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploading(world)
    found = []
    for _ in range(3):
        in_a_new_process(monkeypatch)
        found.append(abandoned(world))
        world.clock.sleep(HARD_S / 2)
    assert found == [0, 0, 1]


def test_what_a_sweep_saw_before_the_machine_was_started_again_does_not_count(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploading(world)
    assert abandoned(world) == 0
    seen = world.server.stores.local.path / ".sets-seen"
    seen.write_text(seen.read_text().replace('"boot":"', '"boot":"another'))
    in_a_new_process(monkeypatch)
    world.clock.sleep(HARD_S)
    assert abandoned(world) == 0


def test_a_damaged_file_of_what_was_seen_only_starts_the_time_again(
    world: BlobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploading(world)
    assert abandoned(world) == 0
    (world.server.stores.local.path / ".sets-seen").write_bytes(b"{")
    in_a_new_process(monkeypatch)
    world.clock.sleep(HARD_S)
    assert abandoned(world) == 0
    world.clock.sleep(HARD_S)
    assert abandoned(world) == 1


def test_a_renewal_between_the_second_look_and_the_entry_keeps_the_set(world: BlobWorld) -> None:
    upload_set = uploading(world)
    world.clock.sleep(HARD_S)
    view = Leases(world.journal).look(upload_resource(upload_set))
    assert view is not None
    seen = Seen.of(view.lease)
    world.server.sets.renewer.renew()
    world.clock.jump(HOUR_S)  # by the clock alone the renewed lease would be overdue, too
    with pytest.raises(ConflictError, match="lives; nothing was changed"):
        world.journal.apply(AbandonUpload(upload_set=upload_set, seen=seen))
    with world.journal.reading() as reading:
        assert reading.get(UploadSet, upload_set) is not None
