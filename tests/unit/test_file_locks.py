"""A wait for a file's lock ends: with the lock, or with an error that names the process that has it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import pytest

from lockgate.storage_core import file_locks
from lockgate.storage_core.blobs.cache import directory, pins
from lockgate.storage_core.blobs.cache.directory import CacheFolder
from lockgate.storage_core.blobs.cache.pins import FETCH_WAIT_S, CachePins
from lockgate.storage_core.blobs.keys import new_blob_key, new_upload_set
from lockgate.storage_core.blobs.storage import local
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.file_locks import WAIT_S, WARN_AFTER_S, lock_exclusive, lock_shared, touch
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.workers.broker import embedded_broker
from lockgate.workers.broker.embedded_broker import broker_dir, start_broker, stop_broker
from tests.support.commit.destination import ManualClock


class WaitingClock(ManualClock):
    """A clock that sleeps whole seconds at once, and lets the holder of a lock do something meanwhile."""

    meanwhile: Callable[[], object] = bool

    def sleep(self, seconds: float) -> None:
        super().sleep(1.0)
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WaitingClock:
    clock = WaitingClock()
    monkeypatch.setattr(file_locks, "CLOCK", clock)
    return clock


@pytest.mark.parametrize("lock", [lock_shared, lock_exclusive])
def test_a_wait_ends_with_an_error_that_names_the_process_and_the_way_out(
    tmp_path: Path, clock: WaitingClock, caplog: pytest.LogCaptureFixture, lock: Callable[[Path], object]
) -> None:
    path, began_s = tmp_path / "lock", clock.monotonic_s()
    with lock_exclusive(path), pytest.raises(StoreUnavailableError) as refused:
        lock(path)
    assert f"{path}: the process with pid {os.getpid()} has locked it" in str(refused.value)
    assert "kill -CONT" in str(refused.value)
    assert clock.monotonic_s() - began_s == WAIT_S
    assert f"waiting for its lock, which the process with pid {os.getpid()} has" in caplog.text
    assert len(caplog.records) == 1


def test_a_shared_lock_is_named_too(tmp_path: Path, clock: WaitingClock) -> None:
    with lock_shared(tmp_path / "lock"), pytest.raises(StoreUnavailableError, match=f"pid {os.getpid()} "):
        lock_exclusive(tmp_path / "lock")


def test_without_the_kernels_list_of_locks_the_wait_ends_the_same(
    tmp_path: Path, clock: WaitingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "_LOCKS", tmp_path / "none")
    with lock_shared(tmp_path / "lock"), pytest.raises(StoreUnavailableError, match="another process has"):
        lock_exclusive(tmp_path / "lock")


def test_a_holder_that_makes_progress_is_waited_for_however_long(tmp_path: Path, clock: WaitingClock) -> None:
    held = lock_exclusive(tmp_path / "lock")
    ends_s = clock.monotonic_s() + 5 * WAIT_S
    touched_s = 0.0

    def work() -> None:
        nonlocal touched_s
        if clock.monotonic_s() >= ends_s:
            held.close()
        elif clock.monotonic_s() - touched_s >= WAIT_S - 1:
            touched_s = clock.monotonic_s()
            os.utime(held.fileno(), (touched_s, touched_s))

    clock.meanwhile = work
    with lock_exclusive(tmp_path / "lock"):
        assert clock.monotonic_s() >= ends_s


def test_a_lock_that_is_released_soon_is_waited_for_without_a_word(
    tmp_path: Path, clock: WaitingClock, caplog: pytest.LogCaptureFixture
) -> None:
    held = lock_exclusive(tmp_path / "lock")
    frees_s = clock.monotonic_s() + WARN_AFTER_S - 1
    clock.meanwhile = lambda: held.close() if clock.monotonic_s() >= frees_s else None
    lock_shared(tmp_path / "lock").close()
    assert caplog.records == []


def test_progress_of_a_closed_lock_is_ignored(tmp_path: Path) -> None:
    held = lock_exclusive(tmp_path / "lock")
    held.close()
    touch(held)


def test_a_fetch_of_another_process_is_waited_for_while_it_writes(
    tmp_path: Path, clock: WaitingClock
) -> None:
    key = new_blob_key("0" * 64, new_upload_set())
    fetching, waiting = CachePins(tmp_path, clock), CachePins(tmp_path, clock)
    writes_until_s = clock.monotonic_s() + 2 * FETCH_WAIT_S
    clock.meanwhile = lambda: fetching.show_progress() if clock.monotonic_s() < writes_until_s else None
    with (
        fetching.fetching("sales", key),
        pytest.raises(StoreUnavailableError, match=f"without progress for {FETCH_WAIT_S:g} s"),
        waiting.fetching("sales", key),
    ):
        pytest.fail("both fetch it")
    assert clock.monotonic_s() >= writes_until_s + FETCH_WAIT_S - 2
    with waiting.fetching("sales", key):
        pass


def test_a_fetch_that_hangs_is_not_waited_for_because_another_thread_writes(
    tmp_path: Path, clock: WaitingClock
) -> None:
    key = new_blob_key("0" * 64, new_upload_set())
    fetching, waiting = CachePins(tmp_path, clock), CachePins(tmp_path, clock)
    with ThreadPoolExecutor(1) as other:
        began_s = clock.monotonic_s()

        def write() -> None:
            if clock.monotonic_s() < began_s + 2 * FETCH_WAIT_S:
                other.submit(fetching.show_progress).result()

        clock.meanwhile = write
        with (
            fetching.fetching("sales", key),
            pytest.raises(StoreUnavailableError, match="without progress"),
            waiting.fetching("sales", key),
        ):
            pytest.fail("both fetch it")
    assert clock.monotonic_s() < began_s + FETCH_WAIT_S + 5


def test_a_lock_that_passes_from_holder_to_holder_makes_progress(tmp_path: Path, clock: WaitingClock) -> None:
    path = tmp_path / "lock"
    path.touch()
    os.utime(path, (1, 1))
    with lock_exclusive(path):
        assert path.stat().st_mtime > 1


@pytest.mark.parametrize("call", [start_broker, stop_broker])
def test_the_broker_is_not_waited_for_without_a_limit(
    tmp_path: Path, clock: WaitingClock, call: Callable[[Settings], object]
) -> None:
    settings, began_s = load_settings(home=tmp_path), clock.monotonic_s()
    with (
        lock_exclusive(broker_dir(settings) / "broker.lock"),
        pytest.raises(StoreUnavailableError, match=r"broker\.lock: the process with pid"),
    ):
        call(settings)
    assert clock.monotonic_s() - began_s == embedded_broker.LOCK_WAIT_S


def test_verifying_one_large_blob_is_progress_of_a_fetch_and_of_a_cache_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = list[str]()

    def note(file: FileIO) -> None:
        touched.append(Path(f"/proc/self/fd/{file.fileno()}").readlink().name)

    monkeypatch.setattr(local, "_PIECE_BYTES", 1)
    monkeypatch.setattr(pins, "touch", note)
    monkeypatch.setattr(directory, "touch", note)
    data = b"abc"
    key = new_blob_key(hashlib.sha256(data).hexdigest(), new_upload_set())
    path = tmp_path / "blobs" / "sales" / key
    path.parent.mkdir(parents=True)
    path.write_bytes(data)

    cache = CacheFolder(tmp_path, limit_bytes=1000, interval_s=60)
    assert touched[0] == "owners", "the new holder"
    assert touched.count("owners") >= 1 + len(data), "each piece of the blob of a killed process"

    touched.clear()
    cache.local.forget_verified("sales", key)
    with cache.fetching("sales", key):
        cache.local.verified("sales", key)
    assert touched == [f"{key}.fetch"] * len(data)
    cache.close()
