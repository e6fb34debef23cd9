"""Two services append to the same files, are killed and stopped, clocks jump, and each recovers the other's
files: every acknowledged record is there once and in order, and readers never see other bytes.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from lockgate.storage_core.files.namespace.volume_urls import register_url
from lockgate.storage_core.files.volumes.open_volume import open_volume
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings
from tests.conftest import Summarise
from tests.support.processes import file_services
from tests.support.processes.drivers import Jump
from tests.support.processes.file_services import PATIENCE_S, RECORD_BYTES, Machine, Note, record
from tests.support.soak import rounds

pytestmark = [pytest.mark.fault, pytest.mark.integration]

LEASES: Final = {"lease_renew_s": 0.1, "lease_soft_s": 0.2, "lease_hard_s": 0.4, "commit_window_s": 0.3}
USERS, GROUP = (60_001, 60_002) if os.geteuid() == 0 else (None, None), 60_000


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
        last = file_services.start(self._machines[number], *self._named(f"last-{number}"), is_last=True)
        last.join()
        assert last.exitcode == 0

    def notes(self) -> dict[str, list[Note]]:
        """Return the notes of each service."""
        found = {path.stem: path.read_text().splitlines() for path in self._root.glob("*.notes")}
        return {name: [Note(*json.loads(line)) for line in lines] for name, lines in found.items()}

    def _named(self, name: str) -> tuple[str, Path]:
        notes = self._root / f"{name}.notes"
        notes.touch()
        return name, notes

    def _start(self, number: int) -> None:
        jump = None
        if self._random.random() < 0.3:
            jump = Jump(self._random.uniform(0, 1), self._random.choice((-3600.0, 3600.0)))
            self.counts["jumps"] += 1
        named = self._named(f"{number}-{len(self.died_s)}")
        self._running[number] = file_services.start(self._machines[number], *named, jump)

    def _wait_for_work(self, number: int) -> None:
        """Wait until a service has written, and a moment."""
        _, notes = self._named(self._running[number].name)
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
    machines: list[Machine], root: Path, request: pytest.FixtureRequest, summarise: Summarise
) -> None:
    storm = Storm(machines, root, request.node.name)
    try:
        storm.run(rounds(12, 70))
    finally:
        storm.end()
    for number in range(2):
        storm.settle(number)
    check(storm)
    assert storm.counts["append"] > 20
    summarise(str(dict(storm.counts)))
