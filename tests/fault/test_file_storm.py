"""Two services append to the same files, are killed and stopped, clocks jump, and each recovers the other's
files: every acknowledged record is there once and in order, and readers never see other bytes. Threads
pause at times at a step of a call, while others go on.

A record has 32 bytes: its session, which is one opening of a file, and its number there. Each service notes
in a file what was acknowledged to it and what it has cut, so that a kill takes none of these notes away.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from lockgate.storage_core.errors import (
    AccessDeniedError,
    LockgateError,
    MalformedRecordError,
    PathNotFoundError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.files import home_files
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.volume_urls import register_url
from lockgate.storage_core.files.volumes.volume_map import open_volume
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings
from tests.support.processes.drivers import PROCESSES, Jump, clock_of
from tests.support.soak import rounds

if TYPE_CHECKING:
    from tests.conftest import Summarise

pytestmark = [pytest.mark.fault, pytest.mark.integration]

LEASES: Final = {"lease_renew_s": 0.1, "lease_soft_s": 0.2, "lease_hard_s": 0.4, "commit_window_s": 0.3}
USERS, GROUP = (60_001, 60_002) if os.geteuid() == 0 else (None, None), 60_000
RECORD_BYTES: Final = 32
GROWING: Final = ("/a.log", "/b.log", "/c.log", "/d.log")
CUT: Final = ("/e.log", "/f.log")
"""Files that are truncated at times."""
DAMAGE: Final = (AccessDeniedError, MalformedRecordError)
PAUSES_S: Final = (0.01, 0.1, 0.6)
"""Pauses of a thread at any step of a call; the longest ones outlive a lease."""
PATIENCE_S: Final = 60.0


class Note(NamedTuple):
    """What a service has seen: `append`, records up to `number` of a session that begins at `offset` are
    acknowledged; `cut` and `has cut`, before and after a truncate to `offset`; `read`, the checksum `number`
    of the first `offset` bytes; `whole`, all bytes; `error`. The time is before the call, but of `has cut`.
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
    process = PROCESSES.Process(target=run_service, args=(machine, name, notes, jump, is_last), name=name)
    process.start()
    return process


def run_service(machine: Machine, name: str, notes: Path, jump: Jump | None, is_last: bool) -> None:
    file = os.open(notes, os.O_WRONLY | os.O_APPEND)
    os.environ.update(machine.environment)
    if machine.user is not None:
        os.setgroups([machine.group])
        os.setgid(machine.user)
        os.setuid(machine.user)
    draw = Random(name)
    FAILPOINTS.observer = lambda _: time.sleep(draw.choice(PAUSES_S) if draw.random() < 0.02 else 0)
    small, settings = partial(Files, block_bytes=40 * RECORD_BYTES), load_settings(**machine.settings)
    with (
        home_files.open_journal_files(settings, clock=clock_of(jump), files=small) as files,
    ):
        service = Service(files, name, file)
        service.settle() if is_last else service.run()


class Service:
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
                with suppress(*[LockgateError] if time.monotonic() < ends_s else ()):
                    self._append(path, 1)
                    is_done = True
        assert not any(one.is_open for one in files.list("/"))
        files.upkeep.repair()
        found = [str(finding) for finding in files.upkeep.check().findings()]
        assert not [one for one in found if not one.startswith("left over")], found
        for path in (*GROWING, *CUT):
            with files.open(path) as reader:
                self._note("whole", path, text=reader.read().decode())

    def _repeat(self, call: Callable[[], None]) -> None:
        while True:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the test reports it
                if not isinstance(error, LockgateError) or isinstance(error, DAMAGE):
                    self._note("error", text=f"{call.__name__}: {error!r}")
                time.sleep(0.005)  # else another service has the file, or was stopped in a transaction

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


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield a directory that other users can pass through."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def machines(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """Return where two services run: one machine, two that mount one directory, or two with one bucket."""
    shared: dict[str, Any] = {**LEASES, "journal_url": f"sqlite:///{root}/journal.db"}
    homes = [root / "one", root / "two"]
    for home in homes:
        home.mkdir()
    if request.param == "home":
        return [Machine({**shared, "home": homes[0]})] * 2
    if request.param == "bucket":
        shared |= {"s3_endpoint_url": os.environ["LOCKGATE_TEST_S3_ENDPOINT"], "s3_region": "us-east-1"}
        keys = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRET"}
        keys = {name: os.environ[f"LOCKGATE_TEST_S3_{key}"] for name, key in keys.items()}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        urls = [f"{os.environ['LOCKGATE_TEST_S3_URL']}/files-{secrets.token_hex(8)}"]
        machines = [Machine({**shared, "home": home}, keys) for home in homes]
    else:
        server = request.getfixturevalue("postgres")
        shared["journal_url"] = server.new_database(f"files_{secrets.token_hex(4)}")
        urls, machines = [], []
        for home, user in zip(homes, USERS, strict=True):
            machines.append(Machine({**shared, "home": home}, {}, user, GROUP))
            folder = root / f"mount-{len(urls)}"
            urls.append(folder.as_uri())
            folder.mkdir()
            if user is not None:
                os.chown(home, user, user)
                os.chown(folder, 0, GROUP)
            folder.chmod(0o2770)
    settings = load_settings(**machines[0].settings)
    journal = configured_journal(settings, None)
    assert journal is not None
    for url in urls:
        with closing(open_volume(url, settings)) as volume:
            volume.claim(journal.identity)
            register_url(journal, volume.id, url)
    return machines


class Storm:
    """Two services, of which one is killed in each round.

    Attributes:
        counts: Number of kills, stops and jumps, and of notes.
        died_s: When each service was killed.
    """

    def __init__(self, machines: Sequence[Machine], root: Path, seed: str) -> None:
        self.counts: Counter[str] = Counter()
        self.died_s: dict[str, float] = {}
        self._machines = machines
        self._root = root
        self._random = Random(seed)
        self._seed = seed
        self._running: dict[int, ForkServerProcess] = {}

    def run(self, kills: int) -> None:
        """Kill services, one or both at once, some after a stop that outlives their leases."""
        draw = self._random.random
        for number in range(2):
            self._start(number)
        while self.counts["kills"] < kills:
            number = self._random.randrange(2)
            self._wait_for_work(number)
            if draw() < 0.3:
                self._stop(number)
            if draw() < 0.9:
                for one in (0, 1) if draw() < 0.1 else (number,):
                    self._kill(one)
                    self._start(one)

    def end(self) -> None:
        """Kill both services."""
        for number in list(self._running):
            self._kill(number)

    def settle(self, number: int) -> None:
        """Let the last service recover, append and check."""
        last = start(self._machines[number], *self._named(f"last-{number}"), is_last=True)
        last.join()
        assert last.exitcode == 0

    def notes(self) -> dict[str, list[Note]]:
        """Return the notes of each service."""
        found = {path.stem: path.read_text().splitlines() for path in self._root.glob("*.notes")}
        return {name: [Note(*json.loads(line)) for line in lines] for name, lines in found.items()}

    def _named(self, name: str) -> tuple[str, Path]:
        name = f"{self._seed}-{name}"
        notes = self._root / f"{name}.notes"
        notes.touch()
        return name, notes

    def _start(self, number: int) -> None:
        jump = None
        if self._random.random() < 0.3:
            jump = Jump(self._random.uniform(0, 1), self._random.choice((-3600.0, 3600.0)))
            self.counts["jumps"] += 1
        named = self._named(f"{number}-{len(self.died_s)}")
        self._running[number] = start(self._machines[number], *named, jump)

    def _wait_for_work(self, number: int) -> None:
        """Wait until a service has written, and a moment."""
        notes = self._root / f"{self._running[number].name}.notes"
        before, ends_s = notes.stat().st_size, time.monotonic() + PATIENCE_S
        while notes.stat().st_size == before:
            assert time.monotonic() < ends_s, f"{notes.stem} does nothing"
            time.sleep(0.005)
        time.sleep(self._random.uniform(0, 0.3))

    def _stop(self, number: int) -> None:
        pid = self._running[number].pid or 0
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._random.uniform(0.5, 1.0))
        os.kill(pid, signal.SIGCONT)
        time.sleep(self._random.uniform(0, 0.1))
        self.counts["stops"] += 1

    def _kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, process.exitcode
        self.died_s[process.name] = time.monotonic()
        self.counts["kills"] += 1


def check(storm: Storm) -> None:
    """Compare all notes of a storm with what the files have at its end."""
    notes = storm.notes()
    every = sorted((note for found in notes.values() for note in found), key=lambda note: note.at_s)
    storm.counts.update(note.kind for note in every)
    errors = [note.text for note in every if note.kind == "error"]
    assert not errors, "\n".join(errors)
    whole = {note.path: note.text for note in every if note.kind == "whole"}
    for path, data in whole.items():
        sessions = [
            (session, list(lines))
            for session, lines in groupby(data.splitlines(keepends=True), key=lambda line: line[:20].strip())
        ]
        assert len({session for session, _ in sessions}) == len(sessions), path
        for session, lines in sessions:
            assert lines == [record(session, number).decode() for number in range(len(lines))], path
    cuts = [
        (cut, min([one.at_s for one in found if _ends(one, cut)], default=storm.died_s.get(service, 0.0)))
        for service, found in notes.items()
        for cut in found
        if cut.kind == "cut"
    ]
    for note in every:
        data = whole.get(note.path, "")
        if note.kind == "read":
            assert zlib.crc32(data[: note.offset].encode()) == note.number, note
        for number in range(note.number + 1) if note.kind == "append" else ():
            begin = note.offset + number * RECORD_BYTES
            end = begin + RECORD_BYTES
            assert data[begin:end] == record(note.text, number).decode() or any(
                cut.path == note.path and cut.offset < end and until_s > note.at_s for cut, until_s in cuts
            ), (note, number, data[begin:end])


def _ends(note: Note, cut: Note) -> bool:
    return note.kind == "has cut" and note.offset == cut.offset and note.at_s >= cut.at_s


@pytest.mark.parametrize(
    "machines",
    [
        "home",
        pytest.param("mount", marks=pytest.mark.requires("postgres")),
        pytest.param("bucket", marks=pytest.mark.requires("s3-server")),
    ],
    indirect=True,
)
def test_every_acknowledged_record_is_there_once_and_in_order_after_a_storm(
    machines: list[Machine], root: Path, tmp_path: Path, summarise: Summarise
) -> None:
    storm = Storm(machines, root, rounds("storm", secrets.token_hex(3)))
    try:
        try:
            storm.run(rounds(12, 70))
        finally:
            storm.end()
        for number in range(2):
            storm.settle(number)
        check(storm)
    except BaseException as error:
        shutil.copytree(root, tmp_path / "storm")
        error.add_note(f"notes, journal and volumes are kept in {tmp_path / 'storm'}")
        raise
    assert storm.counts["append"] > 20
    summarise(str(dict(storm.counts)))
