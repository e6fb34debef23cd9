"""Real volumes that fail, or whose disks and stores do, when a test says so."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from lockgate.storage_core.errors import OutcomeUnknownError, StoreUnavailableError
from lockgate.storage_core.files.volumes.directory.directory_volume import DirectoryVolume
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.protocol import Usage, Volume
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.files.volumes.s3.s3_volume import S3Volume
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.local.store import LocalStore
from lockgate.storage_core.stores.protocol import ObjectInfo
from tests.support.commit.destination import Crash

FAULTS: Final = ("full", "no sync", "lost")
CALLS: Final = {
    "write", "truncate", "sync", "sync_data", "link", "rename", "unlink", "remove_tree", "sync_directory",
}  # fmt: skip
"""The calls that change a disk."""


class FaultyVolume:
    """A volume that goes out of reach, restarts and loses answers.

    Attributes:
        is_up: Whether it can be reached.
        loses: Names of calls whose next answer is lost.
        refuses: Names of calls that fail next, without an effect.
        calls: The calls: their names, arguments and errors.
    """

    def __init__(self, opening: Callable[[], Volume]) -> None:
        self._open = opening
        self.opened = opening()
        self.is_up = True
        self.loses: set[str] = set()
        self.refuses: set[str] = set()
        self.calls: list[tuple[str, tuple[Any, ...], Exception | None]] = []

    def restart(self) -> None:
        """End the process that has the volume open, and open it in another one."""
        self.opened.close()
        self.opened = self._open()

    def fail(self, fault: str) -> None:
        """Fail in one of the ways of `FAULTS` from here on, or work again if it is empty."""

    def answers(self) -> bool:
        return self.is_up and self.opened.answers()

    def close(self) -> None:
        self.opened.close()

    def acknowledge(self, block: BlockId, stamp: Stamp, length_bytes: int) -> None:
        self.calls.append(("acknowledge", (block, stamp, length_bytes), None))
        if self.is_up and "acknowledge" not in self.refuses:
            self.opened.acknowledge(block, stamp, length_bytes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self.opened, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, call: Callable[..., Any], *arguments: object, **named: object) -> Any:
        try:
            done = self._made(name, call, *arguments, **named)
        except Exception as error:
            self.calls.append((name, arguments, error))
            raise
        self.calls.append((name, arguments, None))
        return done

    def _made(self, name: str, call: Callable[..., Any], *arguments: object, **named: object) -> Any:
        if not self.is_up:
            raise StoreUnavailableError(f"{name}: the volume is out of reach")
        if name in self.refuses:
            self.refuses.discard(name)
            raise StoreUnavailableError(f"{name} was refused on purpose")
        done = call(*arguments, **named)
        if name in self.loses:
            self.loses.discard(name)
            raise OutcomeUnknownError(f"{name}: the answer was lost on purpose")
        return done


class FaultyDirectory(FaultyVolume):
    """A volume in a directory whose disk fails, and whose replicas a test damages.

    Args:
        folder: The directory.
        name: Id of the volume, if it is made.

    Attributes:
        is_full: Whether it says that it has no room.
    """

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder = folder
        self.is_full = False
        self.disk = FaultyDisk()
        if name and not folder.exists():
            folder.mkdir(parents=True)
            (folder / "volume.id").write_text(name)
        super().__init__(partial(DirectoryVolume, folder, disk=self.disk))

    def fail(self, fault: str) -> None:
        call, error = ("write", errno.ENOSPC) if fault == "full" else ("sync", errno.EIO)
        self.disk.fail(call if fault else "", error)

    def blocks(self) -> list[int]:
        """Return the blocks that it has replicas of."""
        return sorted(int(path.name) for path in (self.folder / "blocks").iterdir())

    def log(self, block: int) -> Path:
        """Return the newest log of a replica."""
        return sorted((self.folder / "blocks" / f"{block:020d}").iterdir())[-1]

    def lose(self, block: int) -> None:
        """Lose a replica."""
        shutil.rmtree(self.folder / "blocks" / f"{block:020d}")
        self.restart()

    def flip(self, block: int, data: bytes) -> None:
        """Change a bit of the last of these bytes that a replica has."""
        log = self.log(block)
        raw = bytearray(log.read_bytes())
        raw[raw.rindex(data)] ^= 1
        log.write_bytes(raw)
        self.restart()

    def cut(self, block: int, size: int) -> None:
        """Cut off the last bytes that were written to a log."""
        log = self.log(block)
        log.write_bytes(log.read_bytes().rstrip(b"\0")[:-size])
        self.restart()

    def put(self, block: int, stamp: Stamp, data: bytes) -> None:
        """Have a sealed replica with another stamp or other bytes."""
        shutil.rmtree(self.folder / "blocks" / f"{block:020d}", ignore_errors=True)
        self.opened.store(BlockId(block), stamp, [data])

    def usage(self) -> Usage:
        found: Usage = self._call("usage", self.opened.usage)
        return Usage(found.used_bytes, 0) if self.is_full else found


class FaultyBucket(FaultyVolume):
    """A volume in a bucket that refuses creations, or loses their answers."""

    def __init__(self, folder: Path) -> None:
        self._store = _FaultyStore(LocalStore(folder))
        super().__init__(partial(S3Volume, self._store))

    def fail(self, fault: str) -> None:
        self._store.fault = fault


class _FaultyStore(InstrumentedStore):
    fault = ""

    def create(self, key: str, data: bytes) -> ObjectInfo:
        if self.fault in {"full", "no sync"}:
            raise StoreUnavailableError("refused on purpose")
        created = super().create(key, data)
        if self.fault == "lost":
            self.fault = ""
            raise OutcomeUnknownError("lost on purpose")
        return created


class FaultyDisk(Disk):
    """A disk that does something before each call, dies in one and all after it, or fails those of a kind.

    It dies or fails in the middle of a write.
    """

    before: Callable[[int], object] = staticmethod(lambda _: None)

    def __init__(self, dies_at: int = 0) -> None:
        self.calls = 0
        self.dies_at = dies_at
        self.fail("")

    def fail(self, call: str, error: int = errno.EIO, times: range = range(1, 10**9)) -> None:
        """Let the calls of a kind, such as `write` or `sync`, fail; they are counted from 1 on."""
        self.kind, self.error, self.times, self.count = call, error, times, 0

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def call(*arguments: object) -> None:
            self.calls += 1
            self.before(self.calls)
            self.count += (is_kind := name.removesuffix("_data") == self.kind)
            is_due = is_kind and self.count in self.times
            if name == "write" and (is_due or self.calls == self.dies_at):
                file, position, *pieces = arguments
                data = b"".join(pieces)  # type: ignore[arg-type]
                found(file, position, data[: len(data) // 2])  # type: ignore[operator]
            if 0 < self.dies_at <= self.calls:
                raise Crash
            if is_due:
                raise OSError(self.error, "on purpose")
            found(*arguments)  # type: ignore[operator]

        return call


class Inline(Executor):
    """Makes each call at once, so that the steps of a writer have one order."""

    def __init__(self, **_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments, **named))
        return done
