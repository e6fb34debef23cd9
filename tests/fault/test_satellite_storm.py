"""A satellite is added to a tree in use, filled by a mover that is killed again and again, and cut off.

Writers create, append and delete; a retention deletes by age; a reader compares the tree, one directory after
the other, with what they have done. Nothing is lost, doubled or shown again at any moment.
`LOCKGATE_TEST_SOAK=1` has 100,000 old files and 20 kills, 0.02 has 2,000 and 3.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import cast

import pytest

from lockgate.storage_core.errors import LeaseHeldError, PathNotFoundError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.file_blocks import CloseFile, OpenFile
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.files.namespace.queries import FileStatus
from lockgate.storage_core.ids import file_resource
from lockgate.storage_core.journal import Mutation, Written
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.journal.process_journal import close_journals, configured_journal
from lockgate.storage_core.satellite.expired_files import apply_retention
from lockgate.storage_core.satellite.move import add_mount, cut_off, status_of_mount
from lockgate.storage_core.satellite.open_overlay import open_files
from lockgate.storage_core.satellite.overlay import Overlay
from lockgate.storage_core.settings import NamedJournal, Settings, load_settings
from tests.conftest import Summarise
from tests.support.soak import SOAK, rounds

OLD_FILES = rounds(300, round(100_000 * SOAK))
KILLS = rounds(3, max(3, min(20, round(20 * SOAK))))
FOLDERS = rounds(3, 50)
WITH_BYTES = rounds(60, max(60, round(1_000 * SOAK)))
AGE_S = 5.0
RECORD = b"0123456789abcdef"
POINTS = (
    "satellite.copy.after",
    "satellite.hold.after",
    "satellite.adopt.after",
    "satellite.old.after",
    "move.journal-write.after",
    "move.journal-write.before",
)
MOVER = """
import sys
from lockgate.storage_core.cli.root_command import main
from lockgate.storage_core.failpoints import FAILPOINTS, parse_failpoints
FAILPOINTS.arm(parse_failpoints(sys.argv.pop()))
main()
"""


@dataclass
class Life:
    """When a file was made and deleted: begin and end of the calls, and its records with those of appends."""

    made: tuple[float, float]
    gone: tuple[float, float] = (inf, inf)
    appends: list[tuple[float, float]] = field(default_factory=list)
    busy: threading.Lock = field(default_factory=threading.Lock)


class Storm:
    """The tree, and what was done to it."""

    def __init__(self, files: Overlay) -> None:
        self.files = files
        self.lives: dict[str, Life] = {}
        self.names: list[str] = []
        self.looks = self.deleted = 0
        self.looked_s = self.longest_s = 0.0
        self.errors: list[BaseException] = []
        self.ends = threading.Event()

    def repeat(self, call: Callable[[Random], None], seed: str) -> threading.Thread:
        def run() -> None:
            random = Random(seed)
            try:
                while not self.ends.is_set():
                    call(random)
            except BaseException as error:
                self.errors.append(error)
                raise

        thread = threading.Thread(target=run, name=seed)
        thread.start()
        return thread

    def write(self, random: Random) -> None:
        """Make, append to or delete a file."""
        what = random.random()
        if what < 0.4:
            path = f"/logs/{random.randrange(FOLDERS)}/{random.choice('rk')}-{random.getrandbits(40)}.log"
            began = time.monotonic()
            life = self.lives[path] = Life((began, inf))
            with life.busy, self.files.create(path) as writer:
                writer.write(RECORD)
            life.made = (began, time.monotonic())
            life.appends.append(life.made)
            self.names.append(path)
            return
        path = random.choice(self.names)
        life = self.lives[path]
        if not life.busy.acquire(blocking=False):
            return
        with suppress(LeaseHeldError):  # of a mover that was killed
            began = time.monotonic()
            if life.gone[0] < inf:
                pass
            elif what < 0.8:
                with suppress(PathNotFoundError), self.files.append(path) as writer:
                    writer.write(RECORD)
                    writer.flush()
                    life.appends.append((began, time.monotonic()))
            else:
                life.gone = (began, inf)
                with suppress(PathNotFoundError):
                    self.files.delete(path)
                life.gone = (began, time.monotonic())
        life.busy.release()
        time.sleep(0.02)

    def retain(self, _: Random) -> None:
        """Delete old files with an r; writers leave those alone that are about to be deleted."""
        noted: list[str] = []

        def note(path: str) -> None:
            noted.append(path)
            if (life := self.lives.get(path)) and life.gone[0] == inf:
                life.gone = (time.monotonic(), inf)

        apply_retention(self.files, {"/logs/*/r-*": AGE_S / 86_400}, dry_run=False, note=note)
        ended = time.monotonic()
        there = {path for path, _ in listed(self.files)} if noted else set()
        for path in noted:
            life = self.lives.get(path)
            if life is not None and path in there:
                life.gone = (inf, inf)  # it was changed meanwhile, and stays
            elif life is not None:
                life.gone = (life.gone[0], min(life.gone[1], ended))
                self.deleted += 1
        self.ends.wait(1.0)

    def look(self, random: Random) -> None:
        """Compare the next directory with what it must and may have, and some bytes."""
        folder, began = self.looks % FOLDERS, time.monotonic()
        lives = {path: life for path, life in dict(self.lives).items() if path.startswith(f"/logs/{folder}/")}
        found = dict(listed(self.files, [folder]))
        ended = time.monotonic()
        for path, life in lives.items():
            if life.made[1] < began and life.gone[0] > ended:
                assert path in found, f"{path} is lost: {life}"
            elif life.gone[1] < began:
                assert path not in found, f"{path} is shown again: {life}"
        assert set(found) <= set(self.lives)
        for path in random.sample(sorted(lives), min(5, len(lives))):
            self.read(path, lives[path])
        self.longest_s = max(self.longest_s, time.monotonic() - (self.looked_s or began))
        self.looked_s = time.monotonic()
        self.looks += 1
        self.ends.wait(0.2)

    def read(self, path: str, life: Life) -> None:
        began = time.monotonic()
        least = sum(end < began for _, end in life.appends)
        try:
            with self.files.open(path) as reader:
                data = reader.read()
        except (PathNotFoundError, FileNotFoundError):
            assert life.gone[0] < inf, path
            return
        assert data == RECORD * (len(data) // len(RECORD)), path
        assert least <= len(data) // len(RECORD), (path, life)


def listed(files: Files, folders: Iterable[int] = range(FOLDERS)) -> Iterator[tuple[str, FileStatus]]:
    """Yield the files below /logs; a name that is listed twice is an error."""
    seen = set()
    for folder in folders:
        after = None
        while page := files.list(f"/logs/{folder}", after):
            for one in page:
                path = f"/logs/{folder}/{one.name}"
                assert path not in seen, f"{path} is listed twice"
                seen.add(path)
                yield path, one
            after = page[-1].name


def fill(storm: Storm) -> None:
    """Make the old files: most without bytes, so that 100,000 take seconds."""
    began = time.monotonic()
    journal, names = storm.files.journal, []
    for folder in range(FOLDERS):
        storm.files.make_directory(f"/logs/{folder}", parents=True)
    for number in range(OLD_FILES):
        kind = "k" if number % 4 == 0 else "r"
        names.append(f"/logs/{number % FOLDERS}/{kind}-old-{number:06d}.log")
    storm.names += names
    for path in names[:WITH_BYTES]:
        with storm.files.create(path) as writer:
            writer.write(RECORD)
        storm.lives[path] = Life((began, time.monotonic()), appends=[(began, time.monotonic())])
    empty = names[WITH_BYTES:]
    for first in range(0, len(empty), 500):
        paths = empty[first : first + 500]
        opens = [OpenFile(path=path, mode="create", holder="fill", soft_s=60, hard_s=60) for path in paths]
        opened = [cast("Written", one).result for one in journal.write([Mutation(op=op) for op in opens])]
        closes = [CloseFile(resource=file_resource(one.inode), stamp=one.stamp) for one in opened]
        journal.write([Mutation(op=op) for op in closes])
        storm.lives |= {path: Life((began, time.monotonic())) for path in paths}


def mover(settings: Settings, point: str = "none=kill") -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "LOCKGATE_HOME": str(settings.home),
        "LOCKGATE_JOURNALS": '{"logs": {}}',
        "LOCKGATE_LEASE_RENEW_S": str(settings.lease_renew_s),
        "LOCKGATE_LEASE_SOFT_S": str(settings.lease_soft_s),
        "LOCKGATE_LEASE_HARD_S": str(settings.lease_hard_s),
        "LOCKGATE_COMMIT_WINDOW_S": str(settings.commit_window_s),
    }
    command = [sys.executable, "-c", MOVER, "satellite", "move", "logs", "--files-per-s", "500", point]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_satellite_takes_over_a_tree_in_use_with_its_mover_killed(
    tmp_path: Path, summarise: Summarise
) -> None:
    times = {"lease_renew_s": 0.3, "lease_soft_s": 1.0, "lease_hard_s": 2.0, "commit_window_s": 1.0}
    settings = load_settings(home=tmp_path / "home", journals={"logs": NamedJournal()}, **times)
    random, killed = Random("satellite"), 0
    with open_files(settings) as opened:
        files = cast("Overlay", opened)
        storm = Storm(files)
        fill(storm)
        threads = [
            storm.repeat(call, f"{call.__name__}-{seed}")
            for call, seed in ((storm.write, 1), (storm.write, 2), (storm.look, 3), (storm.retain, 4))
        ]
        try:
            journal = configured_journal(settings.for_journal("logs"))
            assert journal is not None
            add_mount(
                files,
                Mount(prefix="/logs", satellite="logs", journal="logs", identity=journal.identity, added_s=0),
            )
            (mount,) = files.all_mounts()
            tries = 0
            while not storm.errors and (killed < KILLS or status_of_mount(files, mount).old_files):
                point = f"{POINTS[tries % len(POINTS)]}=kill@{random.randint(1, 12)}"
                process = mover(settings, point if killed < KILLS else "none=kill")
                output, _ = process.communicate(timeout=3600)
                killed += process.returncode == -9
                tries += 1
                assert process.returncode in {0, 1, 8, -9}, output
                left = status_of_mount(files, mount).old_files
                print(
                    f"mover {tries}: {process.returncode}, {left} old files left, {storm.looks} looks, "
                    f"{len(storm.lives)} files made, {storm.deleted} deleted by age"
                )
                if (
                    process.returncode != -9
                    and killed < KILLS
                    and not status_of_mount(files, mount).old_files
                ):
                    break
        finally:
            storm.ends.set()
            for thread in threads:
                thread.join()
        assert not storm.errors
        files.recover_lapsed()
        last = mover(settings)
        output, _ = last.communicate(timeout=3600)
        assert (last.returncode, status_of_mount(files, mount).old_files) == (0, 0), output
        cut_off(files, mount)
        stay = {path for path, life in storm.lives.items() if life.gone == (inf, inf)}
        assert {path for path, _ in listed(files)} == stay
        for path in (path for path in stay if storm.lives[path].appends):
            storm.read(path, storm.lives[path])
    for one in settings.each_journal():
        journal = configured_journal(one)
        assert journal is not None
        with journal.reading() as reading:
            assert not verify(reading, open_checkpoints(one), lambda *_: None).findings
    close_journals()
    summarise(
        f"{OLD_FILES} old files, {len(storm.lives) - OLD_FILES} new ones, {storm.deleted} deleted by age, "
        f"{len(stay)} at the end; {killed} kills; {storm.looks} looks at one of {FOLDERS} directories, "
        f"{storm.longest_s:.1f} s apart at most"
    )
    assert killed >= KILLS
    assert storm.looks > FOLDERS
