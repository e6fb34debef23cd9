"""A destination that was moved away, or whose records were deleted by hand, while a job was at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.records.create_if_absent import claim
from lockgate.storage_core.commit.records.layout import LOG, turn_claim
from lockgate.storage_core.commit.records.log_records import TurnClaim
from lockgate.storage_core.commit.recovery.upload_sweep import sweep_uploads
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.ids import JobId, Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.commit.destination import World, write


def test_a_job_whose_destination_was_moved_away_takes_no_turn(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    Path(world.url).rename(world.root / "elsewhere")
    with pytest.raises(ObjectNotFoundError, match="no job sales-g1"):
        job.commit()
    assert list(world.store.pages(LOG)) == []
    world.run("other", {"b.csv": b"2"})
    assert world.visible() == {"b.csv": b"2"}


@pytest.mark.parametrize("which", ["world", "journal_world"])
def test_a_turn_of_a_job_that_has_no_record_is_passed(which: str, request: pytest.FixtureRequest) -> None:
    here: World = request.getfixturevalue(which)
    record = TurnClaim(job_id=JobId("gone-g1"), token=Token("t"), stamp=Stamp())
    claim(here.store, turn_claim(1), record)
    receipt = here.run("sales", {"a.csv": b"1"}).receipt
    assert receipt is not None
    assert receipt.turn == 2
    assert here.visible() == {"a.csv": b"1"}


def test_a_name_whose_record_was_deleted_by_hand_begins_its_next_generation(world: World) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    job.close()
    world.store.delete(job._folder.key("job.json"))
    assert world.run("sales", {"b.csv": b"2"}).job_id == "sales-g2"
    assert world.visible() == {"b.csv": b"2"}


def test_a_turn_of_a_job_that_has_no_record_keeps_no_destination_above_it_from_beginning(
    world: World,
) -> None:
    inside = open_store(f"{world.url}/day=1", world.settings)
    claim(inside, turn_claim(1), TurnClaim(job_id=JobId("gone-g1"), token=Token("t"), stamp=Stamp()))
    assert world.run("sales", {"a.csv": b"1"}).receipt is not None


def test_a_wrong_answer_that_a_record_is_gone_deletes_nothing_of_the_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    get = LocalStore.get

    def gone(store: LocalStore, key: str, **options: Any) -> bytes:
        if key == job._folder.key("job.json"):
            raise ObjectNotFoundError("404 during an outage")
        return get(store, key, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "get", gone)
        sweep_uploads(world.url, dry_run=False, settings=world.settings, clock=world.clock)
    assert job.commit().files == 1
