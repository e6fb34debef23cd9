"""Which volumes a process reaches, and which of them a new block gets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    JournalUnavailableError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.namespace.volume_urls import read_places, register_members, register_url
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.protocol import Volume, VolumeId
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.files.volumes.volume_map import (
    AWAY_S,
    MISSED_S,
    REFRESH_S,
    Place,
    VolumeMap,
    open_volume,
)
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stamp import Stamp
from tests.support.commit.destination import ManualClock
from tests.support.files.faulty_volumes import FaultyDirectory

A, B = VolumeId("a"), VolumeId("b")


class World:
    """Registered URLs that a test changes, and the volumes that were asked."""

    def __init__(self, home: Path, *, replicas: int = 1) -> None:
        self.home = home
        self.clock = ManualClock()
        self.places: dict[VolumeId, Place] = {}
        self.up: set[str] = set()
        self.asked: list[VolumeId] = []
        self.is_journal_up = True
        self.map = VolumeMap(
            home, self._read, self._connect, journal="j", replicas=replicas, clock=self.clock
        )

    def _read(self) -> dict[VolumeId, Place]:
        if not self.is_journal_up:
            raise JournalUnavailableError("the journal is down on purpose")
        return dict(self.places)

    def _connect(self, url: str, volume: VolumeId | None) -> Volume:
        if not url.startswith("s3://"):
            return open_volume(url, load_settings(), volume)
        assert volume is not None
        self.asked.append(volume)
        if url not in self.up:
            raise StoreUnavailableError(f"{url} is away")
        return FaultyDirectory(self.home.with_name(volume), volume)

    def place(self, volume: VolumeId, url: str, *, is_up: bool = True, is_in_use: bool = True) -> None:
        self.places[volume] = Place(url, is_in_use)
        if is_up:
            self.up.add(url)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "volume")


def test_without_a_registered_url_a_block_gets_the_volume_of_this_machine(
    tmp_path: Path, world: World
) -> None:
    assert list(world.map) == []
    (own,) = world.map.members()
    assert world.map.members() == (own,)
    assert isinstance(world.map[own], DirectoryVolume)
    assert World(tmp_path / "volume").map[own].id == own

    world.place(A, "s3://one")
    assert world.map.members() == (A,)
    assert list(world.map) == sorted([own, A])
    assert len(world.map) == 2


def test_a_home_directory_may_have_any_name(tmp_path: Path) -> None:
    home = tmp_path / "Jürgens daten %20" / "volume"
    world = World(home)
    (own,) = world.map.members()
    assert (world.map[own].id, (home / "volume.id").read_text()) == (own, own)


def test_the_volume_of_a_machine_is_of_one_journal(tmp_path: Path, world: World) -> None:
    world.map.members()
    other = VolumeMap(
        tmp_path / "volume", dict, world._connect, journal="other", replicas=1, clock=world.clock
    )
    with pytest.raises(ConflictError, match="has blocks of the journal"):
        other.members()


def test_fewer_members_than_replicas_if_only_so_many_answer_and_an_error_if_none(tmp_path: Path) -> None:
    world = World(tmp_path / "volume", replicas=3)
    world.place(A, "s3://one")
    world.place(B, "s3://two", is_up=False)
    world.place(VolumeId("c"), "s3://three", is_in_use=False)
    assert world.map.members() == (A,)
    del world.places[A]
    with pytest.raises(StoreUnavailableError, match="none of 2 registered volumes answers"):
        world.map.members()


def test_a_volume_that_did_not_answer_is_asked_last_for_a_while(world: World) -> None:
    world.place(A, "s3://one", is_up=False)
    world.place(B, "s3://two")
    while A not in world.asked:
        assert world.map.members() == (B,)
    world.asked.clear()
    assert {world.map.members() for _ in range(20)} == {(B,)}
    assert world.asked == []

    world.up.add("s3://one")
    world.clock.sleep(AWAY_S)
    assert {world.map.members() for _ in range(50)} == {(A,), (B,)}  # drawn, not always the first


def test_a_volume_that_moved_or_was_not_known_is_looked_up_again(world: World) -> None:
    assert world.map.get(A) is None
    world.place(A, "s3://one")
    assert world.map.get(A) is None
    world.clock.sleep(MISSED_S)
    first = world.map[A]
    assert world.map[A] is first
    world.place(A, "s3://two")
    assert world.map[A] is first
    world.clock.sleep(REFRESH_S)
    assert world.map[A] is not first


def test_urls_that_were_read_are_used_while_the_journal_is_down(world: World) -> None:
    world.is_journal_up = False
    with pytest.raises(JournalUnavailableError):
        world.map[A]
    world.is_journal_up = True
    world.place(A, "s3://one")
    known = world.map[A]
    world.is_journal_up = False
    world.clock.sleep(REFRESH_S)
    assert world.map[A] is known


def test_a_volume_whose_id_is_its_url_is_opened_without_a_registration_and_never_made(
    tmp_path: Path, world: World
) -> None:
    url = VolumeId((tmp_path / "log").as_uri())
    with pytest.raises(ObjectNotFoundError, match="no volume"):
        world.map[url]
    DirectoryVolume(tmp_path / "log").close()
    assert world.map[url].create(BlockId(1), Stamp(1, 1)).block == 1
    assert list(world.map) == []
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(ObjectNotFoundError):
        World(tmp_path / "volume").map[url]


def test_a_file_on_two_mounts_is_read_appended_and_cut_from_another_home(tmp_path: Path) -> None:
    journal_url = f"sqlite:///{tmp_path}/journal.db"
    here, there = (
        load_settings(home=tmp_path / name, journal_url=journal_url, files_replicas=2)
        for name in ("here", "there")
    )
    journal = configured_journal(here, None)
    assert journal is not None
    urls = {}
    for name in ("one", "two"):
        url = (tmp_path / name).as_uri()
        volume = open_volume(url, here)
        urls[volume.id] = Place(url)
        register_url(journal, volume.id, url)
    entries = journal.status().stamp
    for one, place in urls.items():
        register_url(journal, one, place.url)
    register_members(journal, urls)
    assert journal.status().stamp == entries
    with open_files(here) as files, open_files(there) as others:
        assert read_places(journal) == urls
        with files.create("/a.log") as writer:
            writer.write(b"here;")
        with others.append("/a.log") as writer:
            writer.write(b"there;and too much")
        files.truncate("/a.log", 11)
        assert others.open("/a.log").read() == b"here;there;"
        assert list(others.upkeep.check().findings()) == []
    assert not (tmp_path / "there" / "volume").exists()
