"""Names of files where a file system has no hard links, gives files a group, or repeats its answers."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate.storage_core.errors import AlreadyExistsError, UnsupportedStoreError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores.local.store import LocalStore
from tests.support.cli import Run
from tests.support.commit.destination import Crash, World, write

COMMITTERS = ("magic", "staging", "file-v1")
ANSWERS = {"SMB": errno.ENOTSUP, "FAT": errno.EPERM, "FUSE": errno.ENOSYS, "a limit of 1": errno.EMLINK}

FAT = pytest.mark.parametrize("forget_links", [errno.EPERM], indirect=True)


@pytest.fixture(autouse=True)
def unobserved() -> Iterator[None]:
    yield
    FAILPOINTS.observer = None


@pytest.fixture(params=ANSWERS.values(), ids=ANSWERS)
def forget_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which the file system has no hard links."""

    def link(*_: object, **__: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    return lambda: monkeypatch.setattr(os, "link", link)


def test_set_up_says_that_there_are_no_hard_links(world: World, forget_links: Callable[[], None]) -> None:
    forget_links()
    with pytest.raises(UnsupportedStoreError, match="has no hard links") as refused:
        world.open_job("sales")
    assert "LOCKGATE_JOURNAL_URL" in str(refused.value)


@FAT
@pytest.mark.parametrize("committer", ["magic", "staging"])
def test_with_a_journal_jobs_run_without_hard_links(
    journal_world: World, forget_links: Callable[[], None], committer: str
) -> None:
    forget_links()
    world = journal_world
    world.run("one", {"day=1/a.csv": b"1"}, committer=committer)
    receipt = world.run("two", {"day=2/b.csv": b"2"}, committer=committer, mode="replace").receipt
    assert receipt is not None
    assert receipt.removed_files == 1
    assert world.visible() == {"day=2/b.csv": b"2"}
    assert world.live() == world.keys()
    assert world.open_uploads() == []
    assert world.recover() == []


@FAT
def test_a_decided_job_ends_after_its_destination_has_lost_its_hard_links(
    journal_world: World, forget_links: Callable[[], None], run: Run
) -> None:
    world = journal_world
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})

    def crash(point: str) -> None:
        if point == "complete.complete.before":
            raise Crash

    FAILPOINTS.observer = crash
    with pytest.raises(Crash):
        job.commit()
    FAILPOINTS.observer = None
    forget_links()

    (stuck,) = world.recover()
    assert f"lockgate store check {world.store.url} --again" in stuck.detail
    assert run("store", "check", world.url, "--again").exit_code == 0
    world.recover()
    assert world.visible() == {"a.csv": b"1"}
    assert world.live() == world.keys()


def test_a_completion_without_hard_links_takes_no_other_files_name(
    tmp_path: Path, forget_links: Callable[[], None]
) -> None:
    store = LocalStore(tmp_path / "dest")
    store.put("a", b"first")
    token = new_token()
    upload_id = store.begin_upload("a", token)
    pending = store.seal_upload("a", upload_id, token, [store.put_part("a", upload_id, 1, 0, b"second")])
    forget_links()
    with pytest.raises(AlreadyExistsError):
        store.complete_upload(pending, if_absent=True)
    assert store.get("a") == b"first"
    store.complete_upload(pending)
    assert store.holds(pending)
    assert store.get("a") == b"second"
    store.complete_upload(pending)


def repeated(call: Callable[..., None], error: type[OSError]) -> Callable[..., None]:
    """Return a call that is done, and answers as NFS does for its repetition."""

    def act(*arguments: Any, **folders: Any) -> None:
        call(*arguments, **folders)
        raise error(0, "of a request that was done before")

    return act


@pytest.mark.parametrize("committer", COMMITTERS)
def test_an_answer_that_nfs_repeats_is_read_back(
    world: World, monkeypatch: pytest.MonkeyPatch, committer: str
) -> None:
    monkeypatch.setattr(os, "link", repeated(os.link, FileExistsError))
    monkeypatch.setattr(os, "rename", repeated(os.rename, FileNotFoundError))
    world.run("one", {"day=1/a.csv": b"1"}, committer=committer)
    world.run("two", {"day=1/b.csv": b"2"}, committer=committer, mode="replace")
    assert world.visible() == {"day=1/b.csv": b"2"}
    assert world.live() == world.keys()
    store = LocalStore(world.url)
    store.create("c", b"3")
    store.put("c", b"4")
    assert store.get("c") == b"4"
    with pytest.raises(AlreadyExistsError):
        store.create("c", b"5")


@pytest.fixture
def group() -> int:
    """Return a group of this user that is not that of new files."""
    others = [other for other in os.getgroups() if other != os.getegid()]
    if os.geteuid() != 0 and not others:
        pytest.skip("this user is a member of one group only")
    return others[0] if others else 12_345


@pytest.mark.parametrize("committer", COMMITTERS)
def test_a_file_gets_the_group_of_its_destination_and_not_that_of_its_staging_folder(
    world: World, tmp_path: Path, group: int, committer: str
) -> None:
    with world.open_job("one") as job:  # the destination and its hidden folders are older than their group
        write(job, "t", {"a.csv": b"1"})
        job.commit()
    os.chown(world.url, -1, group)
    Path(world.url).chmod(0o2775)
    world.run("two", {"b.csv": b"2"}, committer=committer, mode="replace")
    (visible,) = Path(world.url).glob("b-*.csv")
    assert visible.stat().st_gid == group
    assert Path(world.url, "_SUCCESS").stat().st_gid == group


@pytest.mark.parametrize("committer", COMMITTERS)
def test_a_file_gets_its_writers_group_where_its_destination_gives_none(
    world: World, tmp_path: Path, group: int, committer: str
) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    os.chown(staging, -1, group)
    staging.chmod(0o2775)
    world.run("one", {"a.csv": b"1"}, committer=committer, staging=str(staging))
    (visible,) = Path(world.url).glob("a-*.csv")
    assert visible.stat().st_gid == os.getegid()


@pytest.mark.parametrize("committer", COMMITTERS)
def test_a_file_gets_what_the_default_acl_of_its_destination_gives(world: World, committer: str) -> None:
    with world.open_job("one") as job:  # the destination and its hidden folders are older than its ACL
        write(job, "t", {"a.csv": b"1"})
        job.commit()
    # Owner rwx, user 1234 rwx, group r-x, mask rwx, others nothing.
    entries = ((1, 7, 0xFFFFFFFF), (2, 7, 1234), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(world.url, "system.posix_acl_default", acl)
    except AttributeError:
        pytest.skip("this system has no extended attributes")
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip(f"no ACLs here: {error}")
    created = Path(world.url, ".created-there")
    created.touch()
    world.run("two", {"b.csv": b"2"}, committer=committer, mode="replace")
    (visible,) = Path(world.url).glob("b-*.csv")
    for path in (visible, Path(world.url, "_SUCCESS")):
        assert os.getxattr(path, "system.posix_acl_access") == os.getxattr(created, "system.posix_acl_access")
        assert path.stat().st_mode == created.stat().st_mode
