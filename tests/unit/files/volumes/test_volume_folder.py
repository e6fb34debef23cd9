"""The directory of a volume: it is another one, away, of other users, or without hard links."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from lockgate.storage_core.errors import (
    ConflictError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes.directory import volume_folder
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from tests.support.commit.destination import Crash
from tests.support.files.directory_volumes import (
    OTHER,
    S1,
    S2,
    B,
    fence_and_append,
    whole_replica,
    written,
)


def test_a_directory_that_has_not_the_volume_is_refused_and_nothing_is_made_there(tmp_path: Path) -> None:
    with DirectoryVolume(tmp_path / "volume") as volume:
        known = volume.id
        volume.claim("one")
        volume.claim("one")
        with pytest.raises(ConflictError, match="LOCKGATE_JOURNAL_URL"):
            volume.claim("two")
    assert DirectoryVolume(tmp_path / "volume", volume=known).id == known
    DirectoryVolume(tmp_path / "other").close()
    (tmp_path / "mount").mkdir()
    for name in ("other", "mount", "none"):
        with pytest.raises(StoreUnavailableError, match="mount it"):
            DirectoryVolume(tmp_path / name, volume=known)
    assert (list((tmp_path / "mount").iterdir()), (tmp_path / "none").exists()) == ([], False)
    (tmp_path / "volume" / "volume.id").unlink()
    assert not volume.answers()
    with pytest.raises(StoreUnavailableError, match="nothing was changed"):
        DirectoryVolume(tmp_path / "volume")


def test_a_volume_that_went_away_has_not_lost_its_replicas_and_fences_no_writer(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    with written(mount) as volume:
        mount.rename(tmp_path / "away")
        mount.mkdir()
        for call in (
            lambda: volume.flush(B, S1),
            lambda: volume.stat(B),
            lambda: volume.fence(B, S2, S1),
            lambda: volume.delete(B, S2),
            lambda: volume.create(OTHER, S1),
            lambda: volume.replicas(None, 9),
        ):
            with pytest.raises(StoreUnavailableError, match="mount it"):
                call()
        assert list(mount.iterdir()) == []


def test_two_processes_that_make_one_volume_at_once_have_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[DirectoryVolume] = []

    def listed(folder: str) -> list[str]:
        monkeypatch.undo()
        made.append(DirectoryVolume(tmp_path))
        return volume_folder.names_in(folder)

    monkeypatch.setattr(volume_folder, "names_in", listed)
    assert DirectoryVolume(tmp_path).id == made[0].id


@pytest.mark.parametrize("name", ["owner.lock", f"{7:020d}.head"])
def test_a_directory_of_an_older_program_is_refused_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConflictError, match="older Lockgate"):
        DirectoryVolume(tmp_path)
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208


def test_what_is_made_has_the_permissions_of_the_volumes_directory(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o2770)
    with written(tmp_path / "volume") as volume:
        volume.claim("journal")
        volume.fence(B, S2, S1)
        volume.store(OTHER, S1, [b"x"])
    for path in (tmp_path / "volume").rglob("*"):
        assert oct(path.stat().st_mode & 0o7777) == oct(0o2770 if path.is_dir() else 0o660), path


def test_a_crash_leaves_no_folder_that_other_users_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = written(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", Mock(side_effect=Crash))
        with pytest.raises(Crash):
            volume.create(OTHER, S1)
    assert [path.name for path in (tmp_path / "blocks").iterdir()] == [f"{B:020d}"]
    assert volume.create(OTHER, S1).block == OTHER
    assert [replica.block for replica in volume.replicas(None, 9)] == [B, OTHER]


@pytest.mark.parametrize("answer", [errno.ENOTSUP, errno.EPERM, errno.ENOSYS, errno.EMLINK])
def test_a_disk_without_hard_links_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    def link(*_: object) -> None:
        raise OSError(answer, "on purpose")

    monkeypatch.setattr(Path, "hardlink_to", link)
    with written(tmp_path) as volume:
        fence_and_append(S2, b"XY")(volume)
    assert whole_replica(tmp_path)[1] == b"abcXY"
    (tmp_path / "other").touch()
    with pytest.raises(FileExistsError):
        Disk().link(tmp_path / "other", tmp_path / "volume.id")
    assert (tmp_path / "volume.id").read_text()


def test_a_link_that_is_asked_for_twice_stands(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    for _ in range(2):
        Disk().link(tmp_path / "one", tmp_path / "two")
    (tmp_path / "three").touch()
    with pytest.raises(FileExistsError):
        Disk().link(tmp_path / "three", tmp_path / "two")
