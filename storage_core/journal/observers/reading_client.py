"""A client that reads a journal at observers and never returns to a state older than one it has seen.

Source: journal, "Observers"; HDFS's consistent reads from standbys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, Self, TypeVar

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import JournalUnavailableError, MalformedJournalError, StateLostError
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.observers.hot_standby import (
    BehindError,
    HotStandby,
    OtherJournalError,
    read_at_least,
)
from lockgate.storage_core.journal.observers.observer_pool import ObserverPool
from lockgate.storage_core.journal.process_journal import token_name
from lockgate.storage_core.journal.read.snapshot_read import Query, Reading
from lockgate.storage_core.journal.session_token import SessionToken
from lockgate.storage_core.stamp import Stamp

T = TypeVar("T")
NEVER: Final = -1.0
DOWN: Final = (JournalUnavailableError, MalformedJournalError)
"""Errors of an observer that cannot be reached or read: the client tries the next one."""

REST_S: Final = 1.0
"""For this long after a wait that timed out, the client tries observers without waiting."""

_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.005
_GROWTH: Final = 1.5
"""A wait takes at most half as long again as necessary: each try costs an observer as much as a read."""


class ObserverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of an observer, compared with the primary.

    Attributes:
        name: URL of the observer, without a password.
        stamp: Stamp of its newest entry, None if it could not be read.
        behind_entries: Number of entries that it lacks.
        lag_s: Age of the oldest entry that it lacks, by the primary's clock; 0 if it lacks none.
        why_down: Error because of which it is not used, None if it is used.
    """

    name: str
    stamp: Stamp | None = None
    behind_entries: int | None = None
    lag_s: float | None = None
    why_down: str | None = None


class Client:
    """Reads one journal. Threads may share it.

    Args:
        journal: The primary; reads include what was written through it.
        observers: Observers of the same journal; without any, reads go to the primary.
        wait_ms: How long to wait for observers that are behind before reading at the primary.
        auto_msync_ms: When to msync: -1: only before a client's first read; 0: before each read; n: when the
            primary has not answered for n ms.
        always_primary: Do not use observers.
        clock: Waits, and measures the time since the primary last answered.
    """

    def __init__(
        self,
        journal: Journal,
        observers: Sequence[HotStandby] = (),
        *,
        wait_ms: float = 50.0,
        auto_msync_ms: float = NEVER,
        always_primary: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.journal = journal
        self._clock = clock or SystemClock()
        self._pool = ObserverPool(observers, self._clock)
        self._wait_ms = wait_ms
        self._auto_msync_ms = auto_msync_ms
        self._always_primary = always_primary or not observers
        self._is_new = True
        self._gave_up_s: float | None = None

    @property
    def token(self) -> SessionToken:
        """The stamps that this client has seen; a client that receives them reads at least that state."""
        return SessionToken.of(self.journal.name, self.journal.seen_stamps.stamps)

    def see(self, token: SessionToken) -> None:
        """Make later reads at least as new as the token; its stamps of other journals are ignored.

        A new client with a token needs no msync.
        """
        for name in (self.journal.name, token_name(self.journal)):
            for stamp in token.for_journal(name):
                self.journal.seen_stamps.add(stamp)
                self._is_new = False

    def msync(self) -> Stamp:
        """Return the primary's newest stamp; later reads include everything written before.

        Call it to continue after a `StateLostError`, with the state that has survived.

        Raises:
            JournalUnavailableError: The primary cannot be reached.
        """
        stamp = self.journal.msync()
        self._is_new = False
        return stamp

    def sync(self) -> None:
        """Make later reads include everything written before; unlike `msync`, report what was lost.

        Raises:
            StateLostError: What the client has seen did not survive a failover or a restore.
            JournalUnavailableError: The primary cannot be reached.
        """
        self._read_primary(Reading.status)
        self._is_new = False

    def read(self, query: Query[T]) -> T:
        """Run a query on one state that includes all that this client has seen.

        Args:
            query: Function of a `Reading`, such as `queries.jobs`. It may run again on another copy. It must
                not return an iterator, because the state is closed afterwards.

        Raises:
            StateLostError: What the client has seen did not survive a failover or a restore.
            JournalUnavailableError: Neither an observer nor the primary can answer.
            LockgateError: An error of the query.
        """
        if not self._always_primary:
            if self._is_sync_due():
                self.sync()
            try:
                return self._read_observer(query)
            except BehindError:
                metrics.record_observer_fallback()
        return self._read_primary(query)

    def observers(self) -> list[ObserverStatus]:
        """Compare each observer with the primary, including those that are down.

        Raises:
            JournalUnavailableError: The primary cannot be reached.
        """
        return [self._compare(observer) for observer in self._pool.observers]

    def close(self) -> None:
        """Close the observers' connections; the journal stays open."""
        for observer in self._pool.observers:
            observer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_sync_due(self) -> bool:
        if self._is_new or self._auto_msync_ms == NEVER:
            return self._is_new
        since_s = self.journal.seen_stamps.since_contact_s
        return since_s is None or since_s * 1000 >= self._auto_msync_ms

    def _read_observer(self, query: Query[T]) -> T:
        """Run the query at the first observer that has caught up; raise BehindError if none has in time."""
        stamps = self.journal.seen_stamps.stamps
        has_waited = False
        for pause_s in _pauses(self._patience_s()):
            if pause_s:
                if not has_waited:
                    metrics.record_observer_wait()
                    has_waited = True
                self._clock.sleep(pause_s)
            available = self._pool.next()
            for observer in available:
                try:
                    with observer.reading(stamps) as (state, stamp):
                        self._pool.mark_up(observer)
                        self.journal.seen_stamps.replace(stamps, stamp)
                        return query(state)
                except BehindError:
                    self._pool.mark_behind(observer)
                except DOWN as error:
                    self._pool.mark_down(observer, error)
            if not available:
                break
        self._gave_up_s = self._clock.monotonic_s()
        raise BehindError("no observer has in time what was seen")

    def _patience_s(self) -> float:
        """Return how long to wait: not at all soon after a wait that timed out."""
        # Otherwise each read would wait for an observer that has stopped replicating.
        rests = self._gave_up_s is not None and self._clock.monotonic_s() - self._gave_up_s < REST_S
        return 0.0 if rests else self._wait_ms / 1000

    def _read_primary(self, query: Query[T]) -> T:
        journal = self.journal
        stamps = journal.seen_stamps.stamps
        try:
            with read_at_least(journal.database, journal.name, journal.identity, stamps) as (state, stamp):
                journal.seen_stamps.replace(stamps, stamp)
                journal.seen_stamps.add_from_primary(stamp)
                return query(state)
        except OtherJournalError as error:
            raise StateLostError(
                f"{error}: the database was replaced under this process; put the right one back, or start "
                "this process again to go on with what is there"
            ) from None
        except BehindError as error:
            raise StateLostError(
                f"{error}: a failover or a restore lost it, or an old primary is back; nothing was read; see "
                "that LOCKGATE_JOURNAL_URL names the right server, then msync to go on with what it holds"
            ) from None

    def _compare(self, observer: HotStandby) -> ObserverStatus:
        try:
            with observer.reading(()) as (_, stamp):
                pass
        except (BehindError, *DOWN) as error:
            metrics.record_observer_lag(observer.name, math.inf)
            return ObserverStatus(name=observer.name, why_down=str(error))
        with self.journal.reading() as primary:
            newest = primary.status().stamp
            lacking = primary.entries(stamp.sequence, 1)
            lag_s = max(0.0, primary.now_s() - lacking[0].at_s) if lacking else 0.0
        metrics.record_observer_lag(observer.name, lag_s)
        return ObserverStatus(
            name=observer.name,
            stamp=stamp,
            behind_entries=max(0, newest.sequence - stamp.sequence),
            lag_s=lag_s,
            why_down=self._pool.why_down(observer),
        )


def _pauses(total_s: float) -> Iterator[float]:
    """Yield 0, then growing pauses that add up to `total_s`."""
    yield 0.0
    pause_s = _FIRST_PAUSE_S
    while total_s > 0:
        yield min(pause_s, total_s)
        total_s -= pause_s
        pause_s = min(_GROWTH * pause_s, _LONGEST_PAUSE_S)
