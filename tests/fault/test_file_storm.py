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
from typing import TYPE_CHECKING, Final

import pytest

from lockgate.storage_core.files.namespace.volume_urls import register_url
from lockgate.storage_core.files.volumes.open_volume import open_volume
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import load_settings
from tests.conftest import Summarise
from tests.support.processes import file_services
from tests.support.processes.drivers import Jump
from tests.support.processes.file_services import RECORD_BYTES, Machine, Note, record
from tests.support.soak import rounds

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = [pytest.mark.fault, pytest.mark.integration]

LEASES: Final = {"lease_renew_s": 0.1, "lease_soft_s": 0.2, "lease_hard_s": 0.4, "commit_window_s": 0.3}
USERS, GROUP = (60_001, 60_002), 60_000
HOUR_S: Final = 3600.0
PATIENCE_S: Final = 5.0
IS_ROOT: Final = os.geteuid() == 0


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield a directory that other users can pass through."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def machines(request: pytest.FixtureRequest, root: Path) -> tuple[Machine, ...]:
    """Return where two services run: one machine, two that mount one directory, or two with one bucket."""
    homes = [root / "one", root / "two"]
    for home in homes:
        home.mkdir()
    sqlite = f"sqlite:///{root}/journal.db"
    if request.param == "home":
        return (Machine({**LEASES, "home": homes[0], "journal_url": sqlite}, {}),) * 2
    if request.param == "bucket":
        settings = {"s3_endpoint_url": os.environ["LOCKGATE_TEST_S3_ENDPOINT"], "s3_region": "us-east-1"}
        keys = ("KEY", "AWS_ACCESS_KEY_ID"), ("SECRET", "AWS_SECRET_ACCESS_KEY")
        environment = {name: os.environ[f"LOCKGATE_TEST_S3_{key}"] for key, name in keys}
        url = f"{os.environ['LOCKGATE_TEST_S3_URL']}/files-{secrets.token_hex(8)}"
        machines = [
            Machine({**LEASES, **settings, "home": home, "journal_url": sqlite}, environment)
            for home in homes
        ]
        urls = [url]
    else:
        server: Server = request.getfixturevalue("postgres")
        journal_url = server.new_database(f"files_{secrets.token_hex(4)}")
        urls = [(root / f"mount-{number}").as_uri() for number in range(2)]
        machines = [
            Machine({**LEASES, "home": home, "journal_url": journal_url}, {}, user, GROUP)
            for home, user in zip(homes, USERS if IS_ROOT else (None, None), strict=True)
        ]
        for number in range(2):
            (root / f"mount-{number}").mkdir()
            if IS_ROOT:
                os.chown(root / f"mount-{number}", 0, GROUP)
                os.chown(homes[number], USERS[number], USERS[number])
            (root / f"mount-{number}").chmod(0o2770)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in machines[0].environment.items():
            patch.setenv(name, value)
        loaded = load_settings(**machines[0].settings)
        journal = configured_journal(loaded, None)
        assert journal is not None
        for url in urls:
            with closing(open_volume(url, loaded)) as volume:
                volume.claim(journal.identity)
                register_url(journal, volume.id, url)
    return tuple(machines)


class Storm:
    """Two services, of which one is killed in each round.

    Attributes:
        counts: Number of kills, stops and jumps.
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
        """Kill services, one or both at once, after a stop that outlives their leases or without one."""
        for number in range(len(self._machines)):
            self._start(number)
        while self.counts["kills"] < kills:
            number = self._random.randrange(len(self._machines))
            self._wait_for_work(number)
            if self._random.random() < 0.3:
                self._stop(number)
            if self._random.random() < 0.9:
                for one in range(len(self._machines)) if self._random.random() < 0.1 else [number]:
                    self._kill(one)
                    self._start(one)

    def end(self) -> None:
        """Kill all services."""
        for number in list(self._running):
            self._kill(number)

    def notes(self) -> dict[str, list[Note]]:
        """Return the notes of each service."""
        return {
            path.stem: [Note(*json.loads(line)) for line in path.read_bytes().splitlines()]
            for path in self._root.glob("*.notes")
        }

    def settle(self, number: int) -> None:
        """Let the last service recover, append and check."""
        notes = self._root / f"last-{number}.notes"
        notes.touch()
        last = file_services.start(self._machines[number], notes.stem, notes, is_last=True)
        last.join()
        assert last.exitcode == 0

    def _start(self, number: int) -> None:
        notes = self._root / f"{number}-{len(self.died_s)}.notes"
        notes.touch()
        jump = None
        if self._random.random() < 0.3:
            jump = Jump(self._random.uniform(0, 1), self._random.choice((-HOUR_S, HOUR_S)))
            self.counts["jumps"] += 1
        self._running[number] = file_services.start(self._machines[number], notes.stem, notes, jump)

    def _wait_for_work(self, number: int) -> None:
        """Wait until a service has written, and a moment."""
        notes, ends_s = self._root / f"{self._running[number].name}.notes", time.monotonic() + PATIENCE_S
        before = notes.stat().st_size
        while notes.stat().st_size == before and time.monotonic() < ends_s:
            time.sleep(0.005)
        time.sleep(self._random.uniform(0, 0.3))

    def _stop(self, number: int) -> None:
        process = self._running[number].pid
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        time.sleep(self._random.uniform(0.5, 1.0))
        os.kill(process, signal.SIGCONT)
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
    """Check all notes of a storm against what the files have at its end."""
    notes = storm.notes()
    every = sorted((note for found in notes.values() for note in found), key=lambda note: note.at_s)
    errors = [note.text for note in every if note.kind == "error"]
    assert not errors, "\n".join(errors)
    whole = {note.path: note.text.encode() for note in every if note.kind == "whole"}
    cuts = [
        (cut, min([one.at_s for one in found if _ends(one, cut)], default=storm.died_s.get(service, 0.0)))
        for service, found in notes.items()
        for cut in found
        if cut.kind == "cut"
    ]
    for path, data in whole.items():
        assert len(data) % RECORD_BYTES == 0
        lines = data.decode().splitlines(keepends=True)
        sessions = [list(group) for _, group in groupby(lines, key=lambda line: line[:20])]
        assert len({found[0][:20] for found in sessions}) == len(sessions), path
        for found in sessions:
            session = found[0][:20].strip()
            assert found == [record(session, number).decode() for number in range(len(found))], path
    for note in every:
        data = whole.get(note.path, b"")
        if note.kind == "read":
            assert zlib.crc32(data[: note.offset]) == note.number, note
        elif note.kind == "append":
            for number in range(note.number + 1):
                begin = note.offset + number * RECORD_BYTES
                end = begin + RECORD_BYTES
                if data[begin:end] != record(note.text, number):
                    assert any(
                        cut.path == note.path and cut.offset < end and until_s > note.at_s
                        for cut, until_s in cuts
                    ), (note, number, data[begin:end])
            storm.counts["acknowledged"] += 1
        storm.counts[note.kind] += 1


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
    machines: tuple[Machine, ...], root: Path, request: pytest.FixtureRequest, summarise: Summarise
) -> None:
    storm = Storm(machines, root, request.node.name)
    try:
        storm.run(rounds(12, 70))
    finally:
        storm.end()
    storm.settle(1)
    storm.settle(0)
    check(storm)
    assert storm.counts["acknowledged"] > 20
    summarise(f"{request.node.name}: {dict(storm.counts)}")
