"""Services that append to the same files at once, in processes that can be killed or stopped at any time.

A record has 32 bytes: its session, which is one opening of a file, and its number there. Each service notes
in a file what was acknowledged to it and what it has cut, so that a kill takes none of these notes away.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from lockgate.storage_core.errors import (
    ConflictError,
    FencedError,
    InvalidInputError,
    JournalUnavailableError,
    OutcomeUnknownError,
    PathExistsError,
    PathNotFoundError,
    StoreUnavailableError,
)
from lockgate.storage_core.files import home_files
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.settings import load_settings
from tests.support.processes.drivers import PROCESSES, Jump, clock_of

RECORD_BYTES: Final = 32
GROWING: Final = ("/a.log", "/b.log", "/c.log", "/d.log")
CUT: Final = ("/e.log", "/f.log")
"""Files that are truncated at times."""
PATIENCE_S: Final = 60.0
_REFUSALS: Final = (FencedError, InvalidInputError, ConflictError, PathExistsError, PathNotFoundError)
"""What another service is a reason for."""
_FAILURES: Final = (JournalUnavailableError, StoreUnavailableError, OutcomeUnknownError)
"""What a service that is stopped within a transaction is a reason for, or a block that is being recovered."""


class Note(NamedTuple):
    """What a service has seen.

    Attributes:
        kind: `append`: records up to `number` were acknowledged; `cut` and `has cut`: before and after a
            truncate to `offset`; `read`: the first `offset` bytes had the checksum `number`.
        at_s: Monotonic time before the call; of `has cut`, after it.
        offset: Offset of the session's first record.
        text: The session, the error, or all bytes.
    """

    kind: str
    at_s: float
    path: str = ""
    offset: int = 0
    number: int = 0
    text: str = ""


@dataclass(frozen=True)
class Machine:
    """Where a service runs: its settings and environment, and its user with a group of the users of all."""

    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    group: int = 0


def record(session: str, number: int) -> bytes:
    return f"{session:<20} {number:10}\n".encode()


def start(
    machine: Machine, name: str, notes: Path, jump: Jump | None = None, *, is_last: bool = False
) -> ForkServerProcess:
    """Start a service; the last one recovers all files, appends to each, checks them and ends."""
    process = PROCESSES.Process(target=_run, args=(machine, name, notes, jump, is_last), name=name)
    process.start()
    return process


def _run(machine: Machine, name: str, notes: Path, jump: Jump | None, is_last: bool) -> None:
    file = os.open(notes, os.O_WRONLY | os.O_APPEND)
    os.environ.update(machine.environment)
    if machine.user is not None:
        os.setgroups([machine.group])
        os.setgid(machine.user)
        os.setuid(machine.user)
    small, settings = partial(Files, block_bytes=40 * RECORD_BYTES), load_settings(**machine.settings)
    with (
        patch.object(home_files, "Files", small),
        home_files.open_files(settings, clock=clock_of(jump)) as files,
    ):
        service = _Service(files, name, file)
        service.settle() if is_last else service.run()


class _Service:
    def __init__(self, files: Files, name: str, notes: int) -> None:
        self._files = files
        self._notes = notes
        self._random = Random(name)
        self._sessions = (f"{name}.{number}" for number in count())
        self._seen = dict.fromkeys(GROWING, b"")

    def run(self) -> None:
        """Write in three threads, recover in one and read in one, until the process is killed."""
        for call in (self._write, self._write, self._recover, self._read):
            threading.Thread(target=self._repeat, args=(call,)).start()
        self._repeat(self._write)

    def settle(self) -> None:
        """Recover all files, append to each of them, and check them."""
        files, ends_s = self._files, time.monotonic() + PATIENCE_S
        files.recovery.recover_lapsed()
        for path in (*GROWING, *CUT):
            is_done = False
            while not is_done:
                with suppress(*_REFUSALS if time.monotonic() < ends_s else ()):
                    self._append(path, 1)
                    is_done = True
        assert not any(one.is_open for one in files.list("/"))
        files.upkeep.repair()
        found = [str(finding) for finding in files.check(verify=True).findings()]
        assert not [one for one in found if not one.startswith("left over")], found
        for path in (*GROWING, *CUT):
            with files.open(path) as reader:
                self._note("whole", path, text=reader.read().decode())

    def _repeat(self, call: Callable[[], None]) -> None:
        while True:
            try:
                call()
            except _REFUSALS:
                time.sleep(0.005)
            except _FAILURES as error:
                self._note("failed", text=f"{call.__name__}: {error!r}")
                time.sleep(0.02)
            except BaseException as error:  # noqa: BLE001 - the test reports it
                self._note("error", text=f"{call.__name__}: {error!r}")

    def _write(self) -> None:
        path = self._random.choice((*GROWING, *CUT))
        if path in CUT and self._random.random() < 0.3:
            self._cut(path)
        else:
            self._append(path, self._random.randrange(100))

    def _append(self, path: str, records: int) -> None:
        try:
            writer = self._files.append(path)
        except PathNotFoundError:
            writer = self._files.create(path)
        offset, session = writer.tell(), next(self._sessions)
        for number in range(records):
            writer.write(record(session, number))
            if self._random.random() < 0.7:
                at_s = time.monotonic()
                writer.flush()
                self._note("append", path, offset, number, session, at_s=at_s)
        if records > 1 and self._random.random() < 0.1:
            return  # it is left to recovery
        at_s = time.monotonic()
        writer.close()
        self._note("append", path, offset, records - 1, session, at_s=at_s)

    def _cut(self, path: str) -> None:
        length = self._files.status(path).length_bytes
        length -= min(length, self._random.randrange(30) * RECORD_BYTES)
        self._note("cut", path, length)
        try:
            self._files.truncate(path, length)
        finally:
            self._note("has cut", path, length)

    def _recover(self) -> None:
        self._files.recovery.recover_lapsed()
        time.sleep(0.05)

    def _read(self) -> None:
        path = self._random.choice(GROWING)
        with self._files.open(path) as reader:
            for _ in range(self._random.randrange(1, 10)):
                reader.seek(0)
                data, seen = reader.read(), self._seen[path]
                assert data.startswith(seen), f"{path}: {len(seen)} bytes were read, and {len(data)} after"
                self._seen[path] = data
                self._note("read", path, len(data), zlib.crc32(data))
                time.sleep(0.02)

    def _note(self, kind: str, *values: Any, text: str = "", at_s: float | None = None) -> None:
        note = Note(kind, time.monotonic() if at_s is None else at_s, *values)
        os.write(self._notes, json.dumps(note._replace(text=note.text or text)).encode() + b"\n")
