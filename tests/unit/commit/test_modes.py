"""Every conflict mode, for the whole destination and by partition, with each state of a destination."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, write
from tests.support.commit.snapshots import one_by_one

OLD = {"day=1/old.csv": b"1", "day=2/old.csv": b"2", "top.csv": b"top"}
NEW = {"day=2/new.csv": b"new"}
MODES = ("fail", "append", "replace")
SCOPES = ("destination", "partitions")
STANDING: Mapping[str, Mapping[str, bytes] | None] = {"empty": None, "existing": OLD, "empty result": {}}
"""Files of an earlier job: no job ran, it published files, or it published none."""


@pytest.mark.parametrize("standing", STANDING)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_handles_existing_data_as_documented(
    world: World, mode: str, scope: str, standing: str
) -> None:
    old = STANDING[standing]
    if old is not None:
        world.run("old", old)
    if mode == "fail" and old:
        with pytest.raises(ConflictError, match="mode is fail"):
            world.run("new", NEW, mode=mode, scope=scope)
        assert world.visible() == old
    else:
        world.run("new", NEW, mode=mode, scope=scope)
        kept = {path for path in old or {} if mode == "append" or scope == "partitions"} - {
            path for path in OLD if mode == "replace" and path.startswith("day=2/")
        }
        assert world.visible() == {**{path: OLD[path] for path in kept}, **NEW}
    assert world.live() == world.keys()
    assert world.open_uploads() == []


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mode", MODES)
def test_a_job_without_files_handles_existing_data_as_its_mode_does(
    world: World, mode: str, scope: str
) -> None:
    world.run("old", OLD)
    if (mode, scope) == ("fail", "destination"):
        with pytest.raises(ConflictError, match="mode is fail"):
            world.run("new", {}, mode=mode, scope=scope)
    else:
        world.run("new", {}, mode=mode, scope=scope)
    assert world.visible() == ({} if (mode, scope) == ("replace", "destination") else OLD)
    assert world.live() == world.keys()


def test_replace_deletes_only_after_every_new_file_is_visible_and_the_outcome_is_decided(
    world: World,
) -> None:
    world = one_by_one(world)  # what looks would miss files that another thread deletes meanwhile
    world.run("old", OLD)
    seen: list[tuple[str, set[str]]] = []

    def look(name: str) -> None:
        FAILPOINTS.observer = None
        seen.append((name, set(world.visible())))
        FAILPOINTS.observer = look

    job = world.open_job("new", mode="replace")
    write(job, "t", NEW)
    FAILPOINTS.observer = look
    try:
        job.commit()
    finally:
        FAILPOINTS.observer = None
    decided = [name for name, _ in seen].index("outcome.create.after")
    for name, visible in seen[:decided]:
        assert set(OLD) <= visible, name
    for name, visible in seen[decided:]:
        assert set(NEW) <= visible, name
    assert set(world.visible()) == set(NEW)
