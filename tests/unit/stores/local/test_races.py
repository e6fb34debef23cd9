"""Two processes work on one upload of a local store, serialised by the lock of its key."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockgate.storage_core import file_locks
from lockgate.storage_core.errors import OutcomeUnknownError
from lockgate.storage_core.ids import Token, new_token
from lockgate.storage_core.stores.local import key_locks
from lockgate.storage_core.stores.local.listing import version_of
from lockgate.storage_core.stores.local.rooted_dir import RootedDir
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import PendingUpload
from tests.support.commit.destination import ManualClock, World, write

DAY_S = 86_400.0


def sealed(store: LocalStore, token: Token) -> PendingUpload:
    """Upload the bytes `ours` for the key `a`."""
    upload_id = store.begin_upload("a", token)
    part = store.put_part("a", upload_id, 1, 0, b"ours")
    return store.seal_upload("a", upload_id, token, [part])


def test_nothing_of_an_upload_becomes_visible_after_its_abort_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, token = LocalStore(tmp_path / "lake"), new_token()
    store.put("a", b"foreign")
    pending = sealed(store, token)
    arrived, returned = threading.Event(), threading.Event()

    def abort() -> None:
        store.abort_upload("a", pending.upload_id)
        returned.set()
        arrived.set()

    aborting = threading.Thread(target=abort)
    flock, rename = fcntl.flock, os.rename
    too_early: list[bool] = []

    def lock(*arguments: Any) -> None:
        if threading.current_thread() is aborting:
            arrived.set()  # it is about to wait for the completion in progress
        flock(*arguments)

    def put_in_place(*names: Any, **folders: Any) -> None:
        aborting.start()
        assert arrived.wait(10)
        too_early.append(returned.is_set())
        rename(*names, **folders)

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(os, "rename", put_in_place)
    store.complete_upload(pending)
    aborting.join(10)

    assert (too_early, returned.is_set()) == ([False], True)
    assert store.holds(pending)
    assert store.get("a") == b"ours"
    assert list(store.upload_pages()) == []


def listed_before_rename(monkeypatch: pytest.MonkeyPatch, other: LocalStore) -> None:
    """Let another process list the uploads, which removes old temporary files, before each rename."""
    rename = os.rename

    def list_and_rename(*names: Any, **folders: Any) -> None:
        list(other.upload_pages())
        rename(*names, **folders)

    monkeypatch.setattr(os, "rename", list_and_rename)


def test_an_upload_of_days_ago_is_completed_over_an_object_beside_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, token = LocalStore(tmp_path / "lake"), new_token()
    store.put("a", b"foreign")
    pending = sealed(store, token)
    (hidden,) = (tmp_path / "lake/_lockgate/uploads").rglob("~*")
    os.utime(hidden, (time.time() - 3 * DAY_S,) * 2)
    pending = msgspec.structs.replace(pending, seal=version_of(hidden.stat()))
    listed_before_rename(monkeypatch, LocalStore(tmp_path / "lake"))
    store.complete_upload(pending)
    assert store.get("a") == b"ours"
    assert list(store.upload_pages()) == []


STOP_IN_A_DELETION = """
import os, signal, sys
from pathlib import Path
from lockgate.storage_core.stores.local.listing import version_of
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import PendingUpload
os.unlink = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
LocalStore(Path(sys.argv[1])).delete(sys.argv[2])
"""


def stop_in_a_deletion(folder: Path, key: str) -> int:
    """Start a process that stops itself in a deletion, with the key's lock, and return its pid.

    A fork would inherit every journal that other tests have opened.
    """
    process = subprocess.Popen([sys.executable, "-c", STOP_IN_A_DELETION, str(folder), key])
    process.returncode = 0  # the fixture waits for it
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    return process.pid


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[int]:
    """Return the pid of a process that stopped while it deleted the key `held` of the store `lake`."""
    store = LocalStore(tmp_path / "lake")
    store.put("held", b"1")
    pid = stop_in_a_deletion(tmp_path / "lake", "held")
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("call", ["put", "abort"])
def test_a_call_waits_for_a_stopped_process_with_a_limit_and_then_names_it(
    tmp_path: Path, stopped: int, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_locks, "LOCK_WAIT_S", 0.1)
    monkeypatch.setattr(key_locks, "WARN_AFTER_S", 0.0)
    store = LocalStore(tmp_path / "lake")
    version = store.head("held").version
    calls: dict[str, Callable[[], object]] = {
        "delete": lambda: store.delete("held", if_version=version),
        "put": lambda: store.put("held", b"2", if_version=version),
        "abort": lambda: store.abort_upload("held", "0" * 32),
    }
    with pytest.raises(OutcomeUnknownError, match=f"pid {stopped} on .* nothing was deleted; continue that"):
        calls[call]()
    name = f"pid {stopped} on {socket.gethostname()}"
    # Threads of other tests may still end, and log that.
    shown = [message for message in caplog.messages if message.startswith(store.url)]
    assert shown == [f"{store.url}/held: waiting for its lock, which the process with {name} has"]
    assert store.get("held") == b"1"


def test_a_commit_waits_for_a_stopped_process_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("one", {"a.csv": b"1"})
    (key,) = world.keys()
    job = world.open_job("two", mode="replace")
    write(job, "t", {"b.csv": b"2"})
    clock = ManualClock()
    monkeypatch.setattr(file_locks, "CLOCK", clock)
    began_s = clock.monotonic_s()
    with (
        key_locks.locked(RootedDir(Path(world.url)), key),
        pytest.raises(OutcomeUnknownError, match="kill -CONT"),
    ):
        job.commit()
    assert clock.monotonic_s() - began_s == pytest.approx(key_locks.LOCK_WAIT_S, abs=1.0)
    world.recover()
    assert world.visible() == {"b.csv": b"2"}


def test_a_stopped_process_delays_no_call_for_another_key(tmp_path: Path, stopped: int) -> None:
    store = LocalStore(tmp_path / "lake")
    keys = [str(number) for number in range(200)]
    for key in keys:
        store.put(key, b"1")
    assert store.delete_many(keys) == []
    assert [info.key for page in store.pages() for info in page] == ["held"]


def test_a_forked_child_does_not_keep_the_locks_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "lake")
    version = store.put("a", b"1").version
    ours, theirs = os.pipe()
    children: list[int] = []
    unlink = os.unlink

    def fork_then_unlink(*names: Any, **folders: Any) -> None:
        if not children:
            children.append(os.fork())
            if children == [0]:
                os.close(theirs)
                os.read(ours, 1)  # until the parent closes its end
                os._exit(0)
        unlink(*names, **folders)

    monkeypatch.setattr(os, "unlink", fork_then_unlink)
    monkeypatch.setattr(key_locks, "LOCK_WAIT_S", 0.1)
    try:
        store.delete("a", if_version=version)
        store.put("a", b"2")
        store.delete("a")
    finally:
        os.close(theirs)
        os.waitpid(children[0], 0)
        os.close(ours)
    assert list(store.pages()) == []


def test_locks_of_killed_processes_are_deleted_after_a_day_and_held_ones_are_kept(
    tmp_path: Path, stopped: int
) -> None:
    store, locks = LocalStore(tmp_path / "lake"), tmp_path / "lake" / "_lockgate" / "locks"
    (held,) = locks.iterdir()
    (locks / "0").write_text("pid 1 on a host")
    for lock in locks.iterdir():
        os.utime(lock, (1, 1))
    assert list(store.upload_pages()) == []
    assert list(locks.iterdir()) == [held]
