"""Which volumes a process reaches, and which of them a new block gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.errors import JournalUnavailableError, StoreUnavailableError
from lockgate.storage_core.files.home_files import open_files
from lockgate.storage_core.files.namespace.volume_urls import read_urls, register_members, register_urls
from lockgate.storage_core.files.volumes.home import HomeVolumes
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.remote import VOLUME_SERVER, RemoteVolume
from lockgate.storage_core.files.volumes.volume_map import AWAY_S, MISSED_S, REFRESH_S, VolumeMap
from lockgate.storage_core.http.connection import Connection
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings
from tests.support.blobs.http_server import PATIENCE_S
from tests.support.commit.destination import ManualClock
from tests.support.files.volume_server import served_volumes

A, B, C = (VolumeId(name) for name in "abc")


class FakeRemote(RemoteVolume):
    """A volume that answers if its URL does."""

    asked: list[VolumeId]
    up: set[str]

    def answers(self) -> bool:
        self.asked.append(self.id)
        return self._connection.url in self.up


class World:
    """Registered URLs that a test changes, and the volumes that were asked."""

    def __init__(self, home: HomeVolumes, *, replicas: int) -> None:
        self.clock = ManualClock()
        self.urls: dict[VolumeId, str] = {}
        self.up: set[str] = set()
        self.asked: list[VolumeId] = []
        self.reads = 0
        self.is_journal_up = True
        self.map = VolumeMap(home, self._read, self._connect, replicas=replicas, clock=self.clock)

    def _read(self) -> dict[VolumeId, str]:
        self.reads += 1
        if not self.is_journal_up:
            raise JournalUnavailableError("the journal is down on purpose")
        return dict(self.urls)

    def _connect(self, volume: VolumeId, url: str) -> RemoteVolume:
        remote = FakeRemote(volume, Connection(url, peer=VOLUME_SERVER, timeout_s=1, clock=SystemClock()))
        remote.asked, remote.up = self.asked, self.up
        return remote

    def place(self, volume: VolumeId, url: str, *, is_up: bool = True) -> None:
        self.urls[volume] = url
        if is_up:
            self.up.add(url)

    def members(self) -> set[VolumeId]:
        chosen = self.map.members()
        assert len(set(chosen)) == len(chosen)
        return set(chosen)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[HomeVolumes]:
    volumes = HomeVolumes(tmp_path / "home" / "volumes", owns=True)
    yield volumes
    volumes.close()


def test_without_a_registered_url_a_block_gets_the_volume_of_this_process(home: HomeVolumes) -> None:
    world = World(home, replicas=3)
    (own,) = world.members()
    assert isinstance(world.map[own], LocalVolume)
    assert list(world.map) == [own]

    world.place(A, "http://one:1")
    assert world.members() == {A}
    assert list(world.map) == sorted([own, A])
    assert len(world.map) == 2


def test_members_are_on_different_machines_then_on_different_servers(home: HomeVolumes) -> None:
    one = World(home, replicas=2)
    for volume, url in ((A, "http://one:1"), (B, "http://one:2"), (C, "http://two:1")):
        one.place(volume, url)
    two = World(home, replicas=2)
    for volume, url in ((A, "http://one:1"), (B, "http://one:1"), (C, "http://one:2")):
        two.place(volume, url)
    for _ in range(20):
        for world in (one, two):
            assert C in world.members()
    assert {next(iter(one.members() - {C})) for _ in range(50)} == {A, B}  # drawn, not always the first


def test_fewer_members_than_replicas_if_only_so_many_answer_and_an_error_if_none(home: HomeVolumes) -> None:
    world = World(home, replicas=3)
    world.place(A, "http://one:1")
    world.place(B, "http://two:1", is_up=False)
    assert world.members() == {A}

    world.up.clear()
    with pytest.raises(StoreUnavailableError, match="none of 2 registered volumes answers"):
        world.map.members()


def test_a_volume_that_did_not_answer_is_asked_last_for_a_while(home: HomeVolumes) -> None:
    world = World(home, replicas=1)
    world.place(A, "http://one:1", is_up=False)
    world.place(B, "http://two:1")
    while A not in world.asked:
        assert world.members() == {B}
    world.asked.clear()
    for _ in range(20):
        assert world.members() == {B}
    assert set(world.asked) == {B}

    world.up.add("http://one:1")
    world.clock.sleep(AWAY_S)
    assert {next(iter(world.members())) for _ in range(50)} == {A, B}


def test_a_volume_that_moved_is_used_at_its_new_url(home: HomeVolumes) -> None:
    world = World(home, replicas=1)
    world.place(A, "http://one:1")
    first = world.map[A]
    assert world.map[A] is first
    world.place(A, "http://two:1")
    assert world.map[A] is first
    world.clock.sleep(REFRESH_S)
    moved = world.map[A]
    assert isinstance(moved, FakeRemote)
    assert moved._connection.url == "http://two:1"


def test_a_volume_that_is_not_known_is_looked_up_again(home: HomeVolumes) -> None:
    world = World(home, replicas=1)
    assert world.map.get(A) is None
    world.place(A, "http://one:1")
    assert world.map.get(A) is None
    world.clock.sleep(MISSED_S)
    assert world.map[A].id == A  # type: ignore[attr-defined]
    assert world.reads == 2


def test_urls_that_were_read_are_used_while_the_journal_is_down(home: HomeVolumes) -> None:
    world = World(home, replicas=1)
    world.is_journal_up = False
    with pytest.raises(JournalUnavailableError):
        world.map[A]
    world.is_journal_up = True
    world.place(A, "http://one:1")
    known = world.map[A]
    world.is_journal_up = False
    world.clock.sleep(REFRESH_S)
    assert world.map[A] is known


def test_a_file_on_two_servers_is_read_appended_and_cut_from_another_home(tmp_path: Path) -> None:
    journal_url = f"sqlite:///{tmp_path}/journal.db"
    here = load_settings(home=tmp_path / "here", journal_url=journal_url, files_replicas=2)
    there = load_settings(home=tmp_path / "there", journal_url=journal_url, volume_timeout_s=PATIENCE_S)
    journal = configured_journal(here, None)
    assert journal is not None
    with LocalVolume(tmp_path / "one") as one, LocalVolume(tmp_path / "two") as two:
        with served_volumes(one) as first, served_volumes(two) as second:
            register_urls(journal, {one.id: first, two.id: second})
            entries = journal.status().stamp
            register_urls(journal, {one.id: first, two.id: second})
            register_members(journal, [one.id, two.id])
            assert journal.status().stamp == entries
            with open_files(here) as files, files.create("/a.log") as writer:
                writer.write(b"here;")
            with open_files(there) as files:
                assert read_urls(journal) == {one.id: first, two.id: second}
                with files.append("/a.log") as writer:
                    writer.write(b"there;and too much")
                files.truncate("/a.log", 11)
                assert files.open("/a.log").read() == b"here;there;"
                assert list(files.check(verify=True).findings()) == []
        assert [len(volume.replicas(None, 9)) for volume in (one, two)] == [1, 1]
    assert not (tmp_path / "there" / "volumes").exists()
