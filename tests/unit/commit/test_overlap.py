"""Destinations above and below one another: a new one is refused, an existing pair loses no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination import overlap
from lockgate.storage_core.commit.destination.overlap import overlap_findings
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import AccessDeniedError, ConflictError
from lockgate.storage_core.failpoints import FAILPOINTS
from tests.support.commit.destination import World, overlapping, write
from tests.support.s3.destination import S3World, s3_world

UPPER = {"a.csv": b"upper", "below/b.csv": b"upper below"}
LOWER = {"c.csv": b"lower"}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    with s3_world(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture(params=["local", "s3"])
def upper(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Return an empty destination in a directory or in the strict fake S3."""
    if request.param == "s3":
        found: S3World = request.getfixturevalue("s3")
        return found.driver
    return World(tmp_path, str(tmp_path / "dest"))


def at(upper: World, folder: str) -> World:
    return World(upper.root, f"{upper.url}/{folder}", upper.clock, upper.options)


def is_complete(upper: World) -> bool:
    """Return whether all files in the log of the upper destination exist."""
    live = upper.live()
    return len(live) == len(UPPER) and all(upper.store.head(key).size == size for key, size in live.items())


@pytest.mark.parametrize("folder", ["below", "_hidden/day=1"])
def test_a_new_destination_below_another_is_refused_at_set_up(upper: World, folder: str) -> None:
    upper.run("upper", UPPER)
    before = {info.key for page in upper.store.pages() for info in page}
    with pytest.raises(ConflictError, match=f"/{folder} is below .*; nothing was changed; write to "):
        at(upper, folder).open_job("lower", mode="replace")
    assert {info.key for page in upper.store.pages() for info in page} == before


@pytest.mark.parametrize("folder", ["below", "_hidden/day=1"])
def test_a_new_destination_above_another_is_refused_at_set_up(upper: World, folder: str) -> None:
    lower = at(upper, folder)
    lower.run("lower", LOWER)
    with pytest.raises(ConflictError, match=f"is above .*/{folder}, .*; nothing was changed; choose a dest"):
        upper.open_job("upper")
    assert [key for page in upper.store.pages("_lockgate") for key in page] == []
    lower.run("again", LOWER, mode="replace")
    assert lower.live() == lower.keys()


def test_neighbours_and_folders_without_a_publication_are_in_nobodys_way(upper: World) -> None:
    neighbour = World(upper.root, f"{upper.url}10", upper.clock, upper.options)
    neighbour.run("neighbour", LOWER)
    at(upper, "never").open_job("never run").abort()
    failing = at(upper, "failing").open_job("failing", audit=True)
    write(failing, "t", LOWER)
    failing.record_audit(passed=False, suite="s", summary={}, chosen=failing.chosen_digest())
    with pytest.raises(Exception, match="audit"):
        failing.commit()
    upper.run("upper", UPPER)
    neighbour.run("again", LOWER)
    assert upper.live() == upper.keys()


def test_of_two_destinations_that_begin_at_once_only_one_publishes(upper: World) -> None:
    lower = at(upper, "below")
    first, second = upper.open_job("upper"), lower.open_job("lower", mode="replace")
    write(first, "t", UPPER)
    write(second, "t", LOWER)
    first.commit()
    with pytest.raises(ConflictError, match="is below"):
        second.commit()
    assert second.phase() is JobPhase.FAILED
    assert is_complete(upper)
    assert lower.live() == {}


def test_of_two_first_commits_at_the_same_time_at_most_one_publishes(upper: World) -> None:
    lower = at(upper, "below")
    first, second = upper.open_job("upper"), lower.open_job("lower", mode="replace")
    write(first, "t", UPPER)
    write(second, "t", LOWER)
    refused: list[str] = []

    def commit_the_second(point: str) -> None:
        if point == "turn.create.after":
            FAILPOINTS.observer = None
            with pytest.raises(ConflictError, match="is below") as error:
                second.commit()
            refused.append(str(error.value))

    FAILPOINTS.observer = commit_the_second
    try:
        first.commit()
    finally:
        FAILPOINTS.observer = None
    assert len(refused) == 1
    assert is_complete(upper)


def test_a_replace_never_deletes_a_file_that_the_log_above_names(upper: World) -> None:
    lower = at(upper, "below")
    with overlapping():
        lower.run("lower", LOWER)
        upper.run("upper", UPPER)
    with pytest.raises(ConflictError, match=r"b-\w+.csv is live in the log of .*; nothing was published"):
        lower.run("again", LOWER, mode="replace")
    assert is_complete(upper)
    assert lower.live() == {key: size for key, size in lower.keys().items() if key.startswith("c-")}
    lower.run("more", {"d.csv": b"appended"})
    upper.run("none", {"a.csv": b"only"}, mode="replace")
    lower.run("again", LOWER, mode="replace")
    assert lower.live() == lower.keys()


def test_findings_name_existing_overlaps_from_both_sides(upper: World) -> None:
    lower, deep = at(upper, "below"), at(upper, "below/deep")
    (none,) = overlap_findings(upper.store, upper.settings)
    assert none.ok
    with overlapping():
        for world, files in ((lower, LOWER), (deep, LOWER), (upper, UPPER)):
            world.run("job", files)
    from_above = overlap_findings(upper.store, upper.settings)
    from_below = overlap_findings(lower.store, upper.settings)
    assert [finding.ok for finding in [*from_above, *from_below]] == [False] * 4
    assert f"{lower.store.url} is below {upper.store.url}" in from_above[0].detail
    assert "names 1 live files in the inner one, the first is b-" in from_above[0].detail
    assert f"{deep.store.url} is below {upper.store.url}" in from_above[1].detail
    assert from_below[0].detail == from_above[0].detail
    assert "the outer log names 0 live files" in from_below[1].detail


def test_a_destination_below_another_by_a_link_is_refused(tmp_path: Path) -> None:
    upper = World(tmp_path, str(tmp_path / "dest"))
    upper.run("upper", UPPER)
    (tmp_path / "link").symlink_to(tmp_path / "dest" / "below")
    with pytest.raises(ConflictError, match="is below"):
        World(tmp_path, str(tmp_path / "link"), upper.clock).open_job("lower")


def test_a_folder_above_that_may_not_be_read_stops_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: object) -> bool:
        raise AccessDeniedError("ListObjectsV2: not below this prefix")

    world = World(tmp_path, str(tmp_path / "dest"))
    original = overlap.DestinationLog.highest
    monkeypatch.setattr(
        overlap.DestinationLog,
        "highest",
        lambda log: original(log) if log.store.url == world.store.url else denied(log),
    )
    world.run("job", LOWER)
    assert world.visible() == LOWER
