"""A reader starts over only if its files are deleted between reading the manifest and opening them."""

from __future__ import annotations

import pytest

from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.destination.manifest import TRIES, read_live
from lockgate.storage_core.errors import InvalidInputError, ObjectNotFoundError
from tests.support.commit.destination import World, plain


class Reader:
    """Reads every live file; before each of the first reads another job replaces the files.

    Attributes:
        turns: Turns of the manifests that were passed in.
    """

    def __init__(self, world: World, *, replacements: int = 0) -> None:
        self.turns: list[int] = []
        self._world = world
        self._replacements = replacements

    def __call__(self, manifest: Manifest) -> dict[str, bytes]:
        self.turns.append(manifest.turn)
        if len(self.turns) <= self._replacements:
            version = str(manifest.turn + 1)
            self._world.run(f"v{version}", table(version), mode="replace")
        return {plain(key): self._world.store.get(key) for key in manifest.files}


def table(version: str) -> dict[str, bytes]:
    return {name: f"{name} of {version}".encode() for name in ("a.csv", "b.csv")}


@pytest.fixture
def table_world(world: World) -> World:
    world.run("v1", table("1"))
    return world


def test_a_destination_without_a_job_has_no_files(world: World) -> None:
    assert read_live(world.url, Reader(world), settings=world.settings) == {}


@pytest.mark.parametrize("replacements", [1, TRIES - 1])
def test_after_a_replacement_all_files_are_read_again_from_one_turn(
    table_world: World, replacements: int
) -> None:
    reader = Reader(table_world, replacements=replacements)
    found = read_live(table_world.url, reader, settings=table_world.settings)
    assert found == table(str(replacements + 1))
    assert reader.turns == list(range(1, replacements + 2))


def test_replaced_files_that_stay_at_their_keys_do_not_restart_a_reader(table_world: World) -> None:
    table_world.keep(turns=1, in_place=True)
    reader = Reader(table_world, replacements=1)
    assert read_live(table_world.url, reader, settings=table_world.settings) == table("1")
    assert reader.turns == [1]


def test_a_reader_that_meets_a_replacement_every_time_gives_up(table_world: World) -> None:
    reader = Reader(table_world, replacements=TRIES)
    with pytest.raises(ObjectNotFoundError):
        read_live(table_world.url, reader, settings=table_world.settings)
    assert len(reader.turns) == TRIES


def test_the_read_of_a_live_file_that_is_missing_is_not_repeated(table_world: World) -> None:
    table_world.store.delete(next(iter(table_world.keys())))
    reader = Reader(table_world)
    with pytest.raises(ObjectNotFoundError):
        read_live(table_world.url, reader, settings=table_world.settings)
    assert reader.turns == [1]


def test_an_error_that_is_not_about_missing_files_is_raised_unchanged(table_world: World) -> None:
    turns: list[int] = []

    def fail(manifest: Manifest) -> None:
        turns.append(manifest.turn)
        table_world.run("v2", table("2"), mode="replace")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read_live(table_world.url, fail, settings=table_world.settings)
    assert turns == [1]


def test_readers_declare_their_errors_for_missing_files(table_world: World) -> None:
    turns: list[int] = []

    def read(manifest: Manifest) -> int:
        turns.append(manifest.turn)
        if len(turns) == 1:
            table_world.run("v2", table("2"), mode="replace")
            raise KeyError("gone")
        return manifest.turn

    assert read_live(table_world.url, read, missing=(KeyError,), settings=table_world.settings) == 2
    assert turns == [1, 2]


def test_an_invalid_destination_is_refused(world: World) -> None:
    with pytest.raises(InvalidInputError):
        read_live("ftp://nowhere", Reader(world), settings=world.settings)
