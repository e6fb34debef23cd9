"""Shared by the tests of the commit protocol: a destination with its visible state, and a manual clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lockgate.storage_core.commit.destination import overlap
from lockgate.storage_core.commit.destination.kept_files import set_history_rule
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.commit.destination.visible_files import visible_files
from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.leases import heartbeat
from lockgate.storage_core.commit.open_or_attach import attach_job, open_job
from lockgate.storage_core.commit.records.log_records import HistoryRule
from lockgate.storage_core.commit.recovery.recover import RecoveryResult, recover_all
from lockgate.storage_core.errors import StoreUnavailableError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.leases import renewer
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Store, open_store

RENEWERS = {heartbeat.RENEWER, renewer.RENEWER}
"""Names of the threads that renew leases."""


@dataclass
class ManualClock:
    """A clock that only sleeping and the test advance."""

    now: float = 1_800_000_000.0
    jumped_s: float = 0.0

    def now_s(self) -> float:
        return self.now

    def monotonic_s(self) -> float:
        return self.now - self.jumped_s

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self.now += seconds
        self.jumped_s += seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait()


class Crash(BaseException):
    """The process dies here: its later calls have no effect."""


def dying(observe: Callable[[str], None]) -> Callable[[str], None]:
    """Attach an observer that raises `Crash` to the calls of a run, except those of its renewing thread.

    Renewals follow the machine's clock and may come even after the run's death, so they are no
    points of the run. They have no effect while such an observer is attached.
    """

    def observed(name: str) -> None:
        if threading.current_thread().name in RENEWERS:
            raise StoreUnavailableError(f"{name}: no lease is renewed during a simulated death")
        observe(name)

    return observed


@dataclass
class World:
    """One destination as its users see it."""

    root: Path
    url: str
    clock: ManualClock = field(default_factory=ManualClock)
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        chosen = {
            "home": self.root / "home",
            "part_bytes": 5 * 1024 * 1024,
            "parallelism": 4,
            "journal_url": "none",
            **self.options,
        }
        return load_settings(**chosen)

    def with_journal(self) -> World:
        """The same destination, whose jobs have their leases in a journal below home."""
        return replace(self, options={**self.options, "journal_url": None})

    def elsewhere(self) -> World:
        """Return the same destination as seen by another process, which shares no state with this one."""
        return replace(self, clock=ManualClock(self.clock.now))

    @property
    def journal(self) -> Journal:
        journal = configured_journal(self.settings, self.clock)
        if journal is None:
            raise AssertionError("this world has no journal")
        return journal

    @property
    def store(self) -> Store:
        return open_store(self.url, self.settings)

    def open_job(self, name: str, **options: object) -> Job:
        return open_job(self.url, name, settings=self.settings, clock=self.clock, **options)  # type: ignore[arg-type]

    def attach(self, job_id: str) -> Job:
        return attach_job(self.url, job_id, settings=self.settings, clock=self.clock)

    def attach_to(self, job: Job) -> Job:
        """Attach to a job in the name of its driver, as that driver's workers do."""
        return attach_job(
            self.url, job.job_id, job_attempt=job.job_attempt, settings=self.settings, clock=self.clock
        )

    def run(self, name: str, files: Mapping[str, bytes], **options: object) -> Job:
        """Run a whole job with one task per file."""
        with self.open_job(name, **options) as job:
            for number, (path, data) in enumerate(files.items()):
                write(job, f"task-{number}", {path: data})
            job.commit()
        return job

    def keep(self, *, keep_s: float = 0.0, turns: int = 0, in_place: bool = False) -> None:
        """Give the destination a history rule."""
        set_history_rule(self.store, HistoryRule(keep_s=keep_s, keep_turns=turns, in_place=in_place))

    def recover(self) -> list[RecoveryResult]:
        """Recover all jobs after every lease has expired."""
        self.clock.sleep(1_000_000)
        return list(recover_all(self.url, settings=self.settings, clock=self.clock))

    def manifest(self, as_of: int | None = None) -> Manifest:
        """Return the files that the log has, also if they are gone."""
        return DestinationLog(self.store).manifest(as_of)

    def visible(self) -> dict[str, bytes]:
        """Return the contents that a listing reader sees, by the path without the short id."""
        store = self.store
        return {plain(info.key): store.get(info.key) for info in visible_files(store)}

    def keys(self) -> dict[str, int]:
        """Return the sizes of listed objects by key."""
        return {info.key: info.size for info in visible_files(self.store)}

    def live(self) -> dict[str, int]:
        """Return the sizes of files in the manifest by key."""
        return {file.key: file.size for file in self.manifest().files.values()}

    def open_uploads(self) -> list[str]:
        return [info.key for page in self.store.upload_pages() for info in page]


@contextmanager
def overlapping() -> Iterator[None]:
    """Let destinations lie above and below one another, as after a copy."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(overlap, "_is_in_use", lambda _: False)
        yield


def plain(key: str) -> str:
    """Take the short id out of a key: `a-<short>.csv` → `a.csv`."""
    folder, slash, name = key.rpartition("/")
    stem, dot, endings = name.partition(".")
    return f"{folder}{slash}{stem[:-11]}{dot}{endings}" if stem[-11:-10] == "-" else key


def write(job: Job, task: str, files: Mapping[str, bytes]) -> None:
    """Commit one task with these files."""
    with job.attempt(task) as attempt:
        for path, data in files.items():
            with attempt.open(path) as file:
                file.write(data)


def crash_at(number: int, run: Callable[[], object], *points: str) -> str | None:
    """Run until the storage call point with this number, from 0, and die there.

    Args:
        number: The number.
        run: What is run.
        points: Beginnings of the names of points that count; by default all.

    Returns:
        The point's name; None if the run ended before it.
    """
    passed = 0
    died_at: str | None = None

    def observe(name: str) -> None:
        nonlocal passed, died_at
        if died_at is None and (not points or name.startswith(points)):
            died_at = name if passed == number else None
            passed += 1
        if died_at is not None:
            raise Crash(died_at)

    FAILPOINTS.observer = dying(observe)
    try:
        run()
    except Crash:
        pass
    finally:
        FAILPOINTS.observer = None
    return died_at
