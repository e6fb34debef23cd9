"""Conflicts with existing data at a destination, and between jobs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.commit.destination.schema_evolution import widens
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.codec import encode
from lockgate.storage_core.commit.records.job_record import Column
from lockgate.storage_core.commit.records.layout import SUCCESS, is_hidden, turn_claim
from lockgate.storage_core.commit.records.log_records import TurnClaim
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import (
    ConflictError,
    InvalidInputError,
)
from lockgate.storage_core.ids import new_token
from tests.support.commit.destination import World, write

NEW = {"new.csv": b"new"}


def put(world: World, key: str, data: bytes = b"theirs") -> None:
    path = Path(world.url) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_fail_accepts_an_empty_destination_and_hidden_files(world: World) -> None:
    put(world, "_temporary/x")
    put(world, ".crc/y")
    put(world, SUCCESS)
    world.run("sales", NEW, mode="fail")
    assert world.visible() == NEW


@pytest.mark.parametrize("how", ["managed", "unmanaged"])
def test_fail_refuses_a_destination_with_data_at_set_up(world: World, how: str) -> None:
    if how == "managed":
        world.run("other", {"a.csv": b"1"})
    else:
        put(world, "a.csv")
    with pytest.raises(ConflictError, match="mode is fail; nothing was changed"):
        world.open_job("sales", mode="fail")


def test_fail_refuses_in_its_turn_data_that_arrived_after_set_up(world: World) -> None:
    job = world.open_job("sales", mode="fail")
    write(job, "t", NEW)
    world.run("faster", {"a.csv": b"1"})
    with pytest.raises(ConflictError, match="mode is fail"):
        job.commit()
    assert job.phase() is JobPhase.FAILED
    assert world.visible() == {"a.csv": b"1"}
    assert world.open_uploads() == []


def test_replace_removes_managed_and_unmanaged_data_and_keeps_hidden_files(world: World) -> None:
    put(world, "theirs.csv")
    put(world, "_keep/z")
    world.run("other", {"a.csv": b"1"})
    receipt = world.run("sales", NEW, mode="replace").receipt
    assert world.visible() == NEW
    assert world.store.get("_keep/z") == b"theirs"
    assert receipt is not None
    assert receipt.removed_files == 2


def test_an_object_that_changed_between_plan_and_deletion_is_kept_and_reported(world: World) -> None:
    from lockgate.storage_core.failpoints import FAILPOINTS

    put(world, "theirs.csv")

    def change(name: str) -> None:
        if name == "remove.delete.before":
            FAILPOINTS.observer = None
            put(world, "theirs.csv", b"changed in between")

    job = world.open_job("sales", mode="replace")
    write(job, "t", NEW)
    FAILPOINTS.observer = change
    try:
        job.commit()
    finally:
        FAILPOINTS.observer = None
    assert world.visible() == {"theirs.csv": b"changed in between", **NEW}
    report = world.attach(job.job_id)._folder.report()
    assert report is not None
    assert {(file.key, file.result) for file in report.files if file.key == "theirs.csv"} == {
        ("theirs.csv", "kept")
    }


def test_append_refuses_incompatible_columns_and_evolves_on_request(world: World) -> None:
    world.run("one", {"a.csv": b"1"}, columns=[("x", "int64"), ("y", "string")])
    with pytest.raises(ConflictError, match=r"x is string, not int64; z is new; y is missing"):
        world.open_job("two", columns=[("x", "string"), ("z", "int64")])
    world.run("three", {"b.csv": b"1"}, columns=[("x", "int64")], evolve_schema=True)
    assert [column.name for column in world.manifest().columns or ()] == ["x"]


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("int", "bigint"),
        ("int32", "int64"),
        ("smallint", "double"),
        ("float", "double"),
        ("decimal(10,2)", "decimal(12,4)"),
        ("bigint", "decimal(38,18)"),
        ("smallint", "decimal(12,2)"),
        ("date", "timestamp_ntz"),
    ],
)
def test_a_type_widens_in_one_direction(narrow: str, wide: str) -> None:
    assert (widens(narrow, wide), widens(wide, narrow)) == (True, False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("timestamp", "date"),
        ("decimal(10,2)", "decimal(10,4)"),
        ("string", "int"),
        ("smallint", "float"),  # Spark's reader of Parquet refuses these three
        ("smallint", "decimal(5,0)"),
        ("bigint", "decimal(19,0)"),
    ],
)
def test_a_type_in_which_values_are_lost_or_spark_reads_none_is_no_wider_one(old: str, new: str) -> None:
    assert not widens(old, new)


@pytest.mark.parametrize(
    "mode", [{}, {"mode": "replace", "scope": "partitions"}], ids=["append", "partitions"]
)
def test_a_column_never_gets_a_narrower_type(world: World, mode: dict[str, Any]) -> None:
    world.run("one", {"day=1/a.csv": b"1"}, columns=[("x", "bigint")])
    with pytest.raises(ConflictError, match="x is int, not bigint"):
        world.open_job("two", columns=[("x", "int")], evolve_schema=True, **mode)
    assert world.visible() == {"day=1/a.csv": b"1"}


def test_a_column_may_get_a_wider_type_on_request(world: World) -> None:
    world.run("one", {"a.csv": b"1"}, columns=[("x", "int")])
    world.run("two", {"b.csv": b"1"}, columns=[("x", "bigint")], evolve_schema=True)
    assert [(column.name, column.type) for column in world.manifest().columns or ()] == [("x", "bigint")]


def test_a_dropped_column_does_not_come_back_with_a_narrower_type(world: World) -> None:
    world.run("one", {"a.csv": b"1"}, columns=[("x", "bigint"), ("y", "string")])
    world.run("two", {"b.csv": b"1"}, columns=[("y", "string")], evolve_schema=True)
    assert [column.name for column in world.manifest().columns or ()] == ["y"]
    with pytest.raises(ConflictError, match="x is int, not bigint"):
        world.open_job("three", columns=[("x", "int"), ("y", "string")], evolve_schema=True)
    world.run("four", {"c.csv": b"1"}, columns=[("x", "int"), ("y", "string")], mode="replace")
    assert world.visible() == {"c.csv": b"1"}


def test_a_column_that_differs_in_case_only_is_no_new_column(world: World) -> None:
    world.run("one", {"a.csv": b"1"}, columns=[("Day", "int")])
    with pytest.raises(ConflictError, match="day differs from Day in case only"):
        world.open_job("two", columns=[("day", "int")], evolve_schema=True)


def test_a_job_that_was_overtaken_by_an_evolution_keeps_the_wider_type_or_is_refused(world: World) -> None:
    world.run("one", {"a.csv": b"1"}, columns=[("x", "int")])
    narrow = world.open_job("narrow", columns=[("x", "int")])
    other = world.open_job("other", columns=[("x", "int"), ("z", "int")], evolve_schema=True)
    for job, name in ((narrow, "b.csv"), (other, "c.csv")):
        write(job, "t", {name: b"1"})
    world.run("wide", {"d.csv": b"1"}, columns=[("x", "bigint"), ("z", "string")], evolve_schema=True)

    narrow.commit()
    assert world.manifest().columns == (Column("x", "bigint"),)
    with pytest.raises(ConflictError, match="z is int, not string"):
        other.commit()
    assert set(world.visible()) == {"a.csv", "b.csv", "d.csv"}


def test_unique_names_false_keeps_the_given_names_and_refuses_to_overwrite(world: World) -> None:
    world.run("one", {"a.csv": b"1"}, unique_filenames=False)
    assert world.keys() == {"a.csv": 1}
    job = world.open_job("two", unique_filenames=False)
    write(job, "t", {"a.csv": b"22"})
    with pytest.raises(ConflictError, match="allow_irreversible"):
        job.commit()
    assert world.visible() == {"a.csv": b"1"}
    world.run("three", {"a.csv": b"333"}, unique_filenames=False, allow_irreversible=True)
    assert world.keys() == {"a.csv": 3}
    assert world.live() == world.keys()


def claim_turn(world: World, job: Job, number: int) -> None:
    """Leave the store in the state of a driver that stopped right after it claimed a turn."""
    stamp = job._held_lease().stamp
    record = TurnClaim(job_id=job.job_id, token=new_token(), stamp=stamp)
    world.store.create(turn_claim(number), encode(record))


def test_a_turn_of_a_job_without_a_driver_is_passed(world: World) -> None:
    stuck = world.open_job("stuck")
    claim_turn(world, stuck, 1)
    stuck.suspend()
    world.run("sales", NEW)
    assert world.manifest().turn == 2
    write(again := world.attach(stuck.job_id), "t", {"late.csv": b"1"})
    again.commit()
    assert world.visible() == {"late.csv": b"1", **NEW}


def test_a_turn_that_an_earlier_driver_of_a_live_job_claimed_is_passed(world: World) -> None:
    dead = world.open_job("slow")
    claim_turn(world, dead, 1)
    dead.close()
    retry = world.open_job("slow")  # the task takes hours to write
    world.run("sales", NEW)
    assert world.manifest().turn == 2
    write(retry, "t", {"late.csv": b"1"})
    retry.commit()
    assert world.visible() == {"late.csv": b"1", **NEW}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"mode": "upsert"}, "mode 'upsert' is not known; use one of fail, append, replace"),
        ({"committer": "zzz"}, "committer 'zzz' is not known; use one of magic, staging"),
        ({"on_lapse": "panic"}, "on_lapse 'panic'"),
        ({"allow_irreversible": True}, "allow_irreversible=True has no effect"),
    ],
)
def test_an_invalid_option_is_named_with_its_remedy_and_nothing_is_created(
    world: World, options: dict[str, object], word: str
) -> None:
    with pytest.raises(InvalidInputError, match=word):
        world.open_job("sales", **options)
    assert not Path(world.url).exists()


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "_a", "x/.b", "a\\b", "", "a/"])
def test_a_path_outside_the_destination_or_hidden_is_refused(world: World, path: str) -> None:
    with world.open_job("sales") as job, job.attempt("t") as attempt, pytest.raises(InvalidInputError):
        attempt.open(path)


def test_a_path_that_is_written_twice_is_refused(world: World) -> None:
    with world.open_job("sales") as job:
        with job.attempt("t") as attempt:
            attempt.open("a.csv").close()
            with pytest.raises(InvalidInputError, match="already written"):
                attempt.open("a.csv")
        write(job, "u", {"a.csv": b"of another task"})
        with pytest.raises(InvalidInputError, match="two tasks write a-"):
            job.commit()
    assert world.visible() == {}


def test_a_destination_that_is_a_file_is_refused(world: World) -> None:
    Path(world.url).write_bytes(b"")
    with pytest.raises(InvalidInputError, match="dest"):
        world.open_job("sales")


def test_the_files_that_spark_hides_are_hidden() -> None:
    hidden = ["_a", ".a", "x/_a/b", "x/.a", "_SUCCESS", ".a=1/b"]
    assert [key for key in [*hidden, "a", "_a=1/b", "x/a_b", "x.y"] if is_hidden(key)] == hidden
