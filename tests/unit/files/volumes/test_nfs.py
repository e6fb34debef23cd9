"""A directory on NFS, as two clients see it whose server tells changes apart by their times only."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lockgate.storage_core.errors import FencedError, OutcomeUnknownError
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from tests.support.files.directory_volumes import S1, S2, S9, B, flush, log_of, whole_replica, written


class Server:
    """Notes when each directory was changed, by a clock that ticks when somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self.changed = Counter[str]()
        monkeypatch.setattr(os, "utime", self.change)
        monkeypatch.setattr(time, "sleep", self.wait)

    def change(self, folder: Path) -> None:
        self.changed[str(folder)] = self.now_ns

    def wait(self, _: float) -> None:
        self.now_ns += 1


class Client(Disk):
    """A disk whose names stay known while their folder seems to be unchanged."""

    before_write: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: dict[str, tuple[int, int]] = {}

    def is_nfs(self, path: Path) -> bool:
        return True

    def changed_ns(self, folder: Path) -> int:
        return self._server.changed[str(folder)]

    def rename(self, source: Path, path: Path) -> None:
        super().rename(source, path)
        self._server.change(path.parent)

    def open_by_name(self, folder: str, name: str, mode: int) -> int:
        changed = self._server.changed[folder]
        known = self._known.get(name)
        if known is None or known[0] != changed:
            known = self._known[name] = changed, super().open_by_name(folder, name, os.O_RDWR)
        return os.open(f"/proc/self/fd/{known[1]}", mode)

    def write(self, file: int, position: int, *pieces: bytes | memoryview) -> None:
        self.before_write()
        super().write(file, position, *pieces)


def test_a_writer_that_has_looked_within_the_tick_of_a_fence_is_refused_or_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(monkeypatch)
    here, there = Client(server), Client(server)
    with written(tmp_path, here) as writer, DirectoryVolume(tmp_path, disk=there) as other:
        acknowledged = [b"abc"]

        def late() -> None:
            there.before_write = lambda: None
            with suppress(FencedError):
                flush(writer, S1, 3, b"late")
                acknowledged.append(b"late")

        there.before_write = late  # of the log that the fence makes, whose bytes it has read
        other.fence(B, S2, S1)
    assert whole_replica(tmp_path)[1] == b"".join(acknowledged)


def test_a_fence_drops_the_pages_that_its_own_client_has_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append in the place of zeros leaves the size as it was, and within a tick the times, too."""
    dropped, advise = set[int](), os.posix_fadvise
    with written(tmp_path), DirectoryVolume(tmp_path, disk=Client(Server(monkeypatch))) as other:
        log = log_of(tmp_path).stat().st_ino

        def advised(file: int, *arguments: int) -> None:
            dropped.add(os.fstat(file).st_ino)
            advise(file, *arguments)

        monkeypatch.setattr(os, "posix_fadvise", advised)
        other.fence(B, S2, S1)
        assert log in dropped
        dropped.clear()
        DirectoryVolume(tmp_path).fence(B, S9, S1)  # of a local file system
        assert not dropped


def test_a_server_that_notes_no_changes_of_directories_is_no_place_for_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(monkeypatch)
    monkeypatch.setattr(os, "utime", lambda _: None)
    with written(tmp_path) as writer, DirectoryVolume(tmp_path, disk=Client(server)) as other:
        with pytest.raises(OutcomeUnknownError):
            other.fence(B, S2, S1)
        with pytest.raises(FencedError):
            flush(writer, S1, 3, b"late")
    assert whole_replica(tmp_path)[1][:3] == b"abc"
