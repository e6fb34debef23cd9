"""The tailer: keeps an embedded observer near its primary, which it only reads.

The fast path asks for the entries after the copy's stamp, a bounded batch at a time, and folds them as the
primary did. The slow path takes one state over whole: at the beginning, when the copy is too far behind, when
the entries that it lacks were pruned, or when the primary has begun a new epoch. It changes over by itself.

Source: journal, "Observers"; HDFS-13150, fast-path tailing.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final, Self

from sqlalchemy import select
from sqlalchemy.engine import URL

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import (
    JournalUnavailableError,
    JournalVersionError,
    MalformedJournalError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.checkpoint.replay import batches
from lockgate.storage_core.journal.database.database import Database, parse_url
from lockgate.storage_core.journal.database.migrate import outdated
from lockgate.storage_core.journal.database.schema import table_of
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.journal import MAIN
from lockgate.storage_core.journal.observers.file_watch import Watch
from lockgate.storage_core.journal.observers.replica_file import Mirror, News, Renewal
from lockgate.storage_core.journal.read.snapshot_read import Reading, Status
from lockgate.storage_core.stamp import Stamp

LEASE: Final = table_of(Lease)

LOG: Final = logging.getLogger("lockgate.observers")

FAR_BEHIND: Final = 50_000
"""So many entries take longer to fold than all rows take to copy, on most journals."""

BATCH: Final = 256
"""So many are folded in about 10 ms, for which readers wait; more at once take no less work each."""

RENEWALS_EVERY_S: Final = 1.0
"""Renewals are no entries: they are looked for so often."""

_OVERLAP_S: Final = 10.0
"""A renewal that was told the time so long ago may be committed only now."""

_LOOK_S: Final = 0.0005
"""A primary's file is looked at so often while it is waited for: it costs a fiftieth of a poll."""

_SHORTEST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.02
_TROUBLE_PAUSE_S: Final = 1.0


class Tailer:
    """Brings one copy of a journal forward. It may be killed anywhere, and a second one does no harm.

    Args:
        source: Of the primary.
        mirror: The copy.
        journal: Name of the journal.
        clock: Waits between two looks.
        far_behind: A copy that lacks more entries is made anew.
    """

    def __init__(
        self,
        source: Database,
        mirror: Mirror,
        journal: str,
        *,
        clock: Clock | None = None,
        far_behind: int = FAR_BEHIND,
    ) -> None:
        self._source = source
        self._mirror = mirror
        self._journal = journal
        self._clock = clock or SystemClock()
        self._far_behind = far_behind
        self._watch = Watch(Path(source.url.database or "")) if source.is_sqlite else None
        self._at: Status | None = None  # unknown after trouble; another tailer is found out
        self._is_suspect = False
        self._looked_s: float | None = None
        self._renewed_s = 0.0

    def poll(self) -> int:
        """Look at the primary once, and take over what is new.

        Returns:
            How many entries the copy has come forward; less than 0 if the primary has gone back.

        Raises:
            MalformedJournalError: The copy is of another journal.
            ObjectNotFoundError: The primary has no such journal.
            JournalUnavailableError: The primary, or the copy's file, cannot be reached.
        """
        with step("tail"):
            at = self._at = self._at or self._mirror.status()
            FAILPOINTS.hit("tail.journal-read.before")
            with self._source.snapshot() as connection:
                source = Reading(connection, self._source, self._journal)
                status = source.status()
                if at is None or self._must_copy(at, status):
                    self._at = None
                    self._mirror.replace(at, source)
                    self._is_suspect, self._looked_s = False, None
                    return status.stamp.sequence - (0 if at is None else at.stamp.sequence)
                news = self._news(at, status, source)
            FAILPOINTS.hit("tail.journal-read.after")
            return 0 if news is None else self._follow(at, news)

    def catch_up(self) -> None:
        """Poll until the copy holds what the primary held at the last look, however fast others write there.

        Raises:
            LockgateError: As `poll` does.
        """
        while abs(self.poll()) >= BATCH or self._is_suspect:
            continue

    def run(self, stop: threading.Event) -> None:
        """Follow the primary until told to stop; trouble that may pass is waited out.

        Raises:
            MalformedJournalError: The copy is of another journal.
            ObjectNotFoundError: The primary has no such journal.
        """
        pause_s = _SHORTEST_PAUSE_S
        while not stop.is_set():
            try:
                moved = self.poll()
            except (JournalUnavailableError, OutcomeUnknownError) as error:
                LOG.warning("observer %s cannot follow now: %s", self._mirror.database.name, error)
                self._clock.wait(stop, _TROUBLE_PAUSE_S)
                continue
            pause_s = _SHORTEST_PAUSE_S if moved else min(2 * pause_s, _LONGEST_PAUSE_S)
            if abs(moved) < BATCH:
                self._rest(stop, pause_s)

    def close(self) -> None:
        """Give the connections back."""
        if self._watch is not None:
            self._watch.close()
        self._source.close()
        self._mirror.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _rest(self, stop: threading.Event, pause_s: float) -> None:
        """Wait so long, or until the primary's file is seen to change."""
        if self._watch is None:
            self._clock.wait(stop, pause_s)
            return
        for _ in range(round(pause_s / _LOOK_S)):
            if self._clock.wait(stop, _LOOK_S) or self._watch.has_changed():
                return

    def _must_copy(self, at: Status, status: Status) -> bool:
        if at.identity != status.identity:
            raise MalformedJournalError(
                f"observer {self._mirror.database.name} holds another journal (identity {at.identity}, not "
                f"{status.identity}): nothing was changed; name another file, or delete this one"
            )
        lacking = status.stamp.sequence - at.stamp.sequence
        return (
            self._is_suspect
            or at.stamp.epoch != status.stamp.epoch
            or not 0 <= lacking <= self._far_behind
            or at.stamp.sequence < status.pruned_sequence
        )

    def _news(self, at: Status, status: Status, source: Reading) -> News | None:
        """Read what is new, None if nothing is."""
        first, newest = at.stamp.sequence, status.stamp.sequence
        try:
            found = list(batches(source, first, min(newest, first + BATCH)))
        except MalformedJournalError as error:
            self._suspect(error)
            return None
        entries = [entry for batch in found for entry in batch]
        has_all = first + len(entries) == newest
        renewals = self._renewals(source) if has_all else []
        if not entries and not renewals and not _head_differs(at, status):
            metrics.observer_lag(self._mirror.database.name, 0.0)
            return None
        return News(status=status, entries=entries, renewals=renewals)

    def _follow(self, at: Status, news: News) -> int:
        self._at = None
        try:
            self._at = self._mirror.follow(at, news)
        except MalformedJournalError as error:
            self._suspect(error)
            return 0
        self._renewed_s = max([self._renewed_s, *(renewal.renewed_s for renewal in news.renewals)])
        if news.entries:
            lag_s = self._clock.now_s() - news.entries[0].at_s
            metrics.observer_lag(self._mirror.database.name, max(0.0, lag_s))
        return len(news.entries)

    def _renewals(self, source: Reading) -> list[Renewal]:
        """Read the leases that were renewed lately; seldom, for they are many."""
        now_s = self._clock.now_s()
        if self._looked_s is not None and abs(now_s - self._looked_s) < RENEWALS_EVERY_S:
            return []
        self._looked_s = now_s
        question = select(LEASE.c.resource, LEASE.c.epoch, LEASE.c.sequence, LEASE.c.renewed_s).where(
            LEASE.c.journal == self._journal, LEASE.c.renewed_s > self._renewed_s - _OVERLAP_S
        )
        return [
            Renewal(resource, Stamp(epoch, sequence), renewed_s)
            for resource, epoch, sequence, renewed_s in source.connection.execute(question)
        ]

    def _suspect(self, error: MalformedJournalError) -> None:
        LOG.error(
            "observer %s: %s; it is made anew from the primary's rows; run `lockgate journal verify`",
            self._mirror.database.name,
            error,
        )
        self._is_suspect = True


def open_tailer(
    url: str,
    path: Path,
    journal: str = MAIN,
    *,
    clock: Clock | None = None,
    far_behind: int = FAR_BEHIND,
) -> Tailer:
    """Open a tailer from a primary into a file of this machine, which it makes if it is missing.

    Args:
        url: Of the primary.
        path: Of the observer's file.
        journal: Name of the journal.
        clock: Waits between two looks.
        far_behind: A copy that lacks more entries is made anew.

    Raises:
        InvalidInputError: The URL cannot be, or the file is no observer's; nothing was changed.
        JournalVersionError: The primary is of another version than this program.
        ObjectNotFoundError: There is no journal at the URL.
        JournalUnavailableError: The primary cannot be reached, or the file not be written.
    """
    source = Database(_existing(parse_url(url)), is_primary=True)
    mirror = Mirror(Database(parse_url(f"sqlite:///{path.absolute()}"), is_copy=True), journal)
    tailer = Tailer(source, mirror, journal, clock=clock, far_behind=far_behind)
    try:
        with source.snapshot() as connection:
            if outdated(connection, source):
                raise JournalVersionError(
                    f"journal {source.name} is not of this program's version: nothing was changed; "
                    "open it once with this release, which migrates it: `lockgate journal status`"
                )
        mirror.prepare()
    except BaseException:
        tailer.close()
        raise
    return tailer


def _existing(url: URL) -> URL:
    """Refuse a file that is not there: SQLite would make an empty one."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        raise ObjectNotFoundError(f"there is no journal at {url}; see LOCKGATE_JOURNAL_URL")
    return url


def _head_differs(at: Status, status: Status) -> bool:
    mine = (at.safe_since_s, at.safe_reason, at.requests_since_s)
    return mine != (status.safe_since_s, status.safe_reason, status.requests_since_s) or (
        at.pruned_sequence < status.pruned_sequence
    )
