"""A client of a journal: it reads at observers, and never sees a state older than one that it has seen.

Source: journal, "Observers"; HDFS's consistent reads from standbys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Self, TypeVar

import msgspec

from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import JournalUnavailableError, MalformedJournalError, StateLostError
from lockgate.storage_core.journal import metrics
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.observers.catch_up import BehindError, reading_at_least
from lockgate.storage_core.journal.observers.observer import Observer
from lockgate.storage_core.journal.observers.observer_pool import Rota
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.journal.session_token import Token
from lockgate.storage_core.journal.told import travels_as
from lockgate.storage_core.stamp import Stamp

T = TypeVar("T")
Question = Callable[[Reading], T]
"""What is asked of one state. It may be asked again elsewhere: it has no effects, and returns no iterator."""

NEVER: Final = -1.0
DOWN: Final = (JournalUnavailableError, MalformedJournalError)
"""What an observer raises that cannot be reached, or whose copy cannot be read: another one is asked."""

REST_S: Final = 1.0
"""After observers were waited for in vain, they are asked, but not waited for, for so long."""

_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.005
_GROWTH: Final = 1.5
"""A wait lasts half as long again as it must, at most: asking costs an observer as much as a read does."""


class ObserverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How an observer stands, compared with the primary.

    Attributes:
        name: Its URL, without a password.
        stamp: Of its newest entry, None if it could not be asked.
        behind_entries: That it lacks.
        lag_s: Age of the oldest entry that it lacks, by the primary's clock; 0 if it lacks none.
        why_down: Why it is not asked, None if it is.
    """

    name: str
    stamp: Stamp | None = None
    behind_entries: int | None = None
    lag_s: float | None = None
    why_down: str | None = None


class Client:
    """Reads one journal. Threads may share it.

    Args:
        journal: The primary, in this process: what is written through it is read here.
        observers: Of the same journal; without any, reads go to the primary.
        wait_ms: Observers that are behind are waited for so long, then the primary is asked.
        auto_msync_ms: -1: only a new client asks the primary what is new; 0: before each read; n: when the
            primary has not answered for n ms.
        always_primary: No read goes to an observer.
        clock: Waits, and tells how long the primary has not answered.
    """

    def __init__(
        self,
        journal: Journal,
        observers: Sequence[Observer] = (),
        *,
        wait_ms: float = 50.0,
        auto_msync_ms: float = NEVER,
        always_primary: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.journal = journal
        self._clock = clock or SystemClock()
        self._rota = Rota(observers, self._clock)
        self._wait_ms = wait_ms
        self._auto_msync_ms = auto_msync_ms
        self._always_primary = always_primary or not observers
        self._is_new = True
        self._gave_up_s: float | None = None

    @property
    def token(self) -> Token:
        """What this client has seen: whoever is given it reads at least that."""
        return Token.of(self.journal.name, self.journal.sight.stamps)

    def see(self, token: Token) -> None:
        """Read from now on at least what another has seen; what the token says of other journals is let be.

        A new client that was given a token need not ask the primary what is new.
        """
        for name in (self.journal.name, travels_as(self.journal)):
            for stamp in token.for_journal(name):
                self.journal.sight.add(stamp)
                self._is_new = False

    def msync(self) -> Stamp:
        """Learn the primary's newest stamp: what others have told of is then read, too.

        After a `StateLostError` this begins anew, with what has survived.

        Raises:
            JournalUnavailableError: The primary cannot be reached.
        """
        stamp = self.journal.msync()
        self._is_new = False
        return stamp

    def read(self, question: Question[T]) -> T:
        """Ask a question of one state, which holds all that this client has seen.

        Args:
            question: Such as `registry.jobs`. It may be asked again, of another copy; it returns values, no
                iterator, for the state is gone afterwards.

        Raises:
            StateLostError: What the client has seen did not survive a failover or a restore.
            JournalUnavailableError: Neither an observer nor the primary can answer.
            LockgateError: What the question raises.
        """
        if not self._always_primary:
            if self._is_sync_due():
                self._ask_primary(Reading.status)
                self._is_new = False
            try:
                return self._ask_observers(question)
            except BehindError:
                metrics.observer_fell_back()
        return self._ask_primary(question)

    def observers(self) -> list[ObserverStatus]:
        """Compare every observer with the primary, also those that are down.

        Raises:
            JournalUnavailableError: The primary cannot be reached.
        """
        return [self._compare(observer) for observer in self._rota.observers]

    def close(self) -> None:
        """Give the observers' connections back; the journal stays open."""
        for observer in self._rota.observers:
            observer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_sync_due(self) -> bool:
        if self._is_new or self._auto_msync_ms == NEVER:
            return self._is_new
        alone_s = self.journal.sight.without_contact_s
        return alone_s is None or alone_s * 1000 >= self._auto_msync_ms

    def _ask_observers(self, question: Question[T]) -> T:
        """Ask whoever has caught up first.

        Raises:
            BehindError: Nobody has, in time; or nobody is there.
        """
        stamps = self.journal.sight.stamps
        has_waited = False
        for pause_s in _pauses(self._patience_s()):
            if pause_s:
                if not has_waited:
                    metrics.observer_waited()
                    has_waited = True
                self._clock.sleep(pause_s)
            asked = self._rota.next()
            for observer in asked:
                try:
                    with observer.reading(stamps) as (state, stamp):
                        self._rota.mark_up(observer)
                        self.journal.sight.settle(stamps, stamp)
                        return question(state)
                except BehindError:
                    continue
                except DOWN as error:
                    self._rota.mark_down(observer, error)
            if not asked:
                break
        self._gave_up_s = self._clock.now_s()
        raise BehindError("no observer holds in time what was seen")

    def _patience_s(self) -> float:
        """Return for how long to wait: not at all, soon after a wait that was in vain.

        Else every read would pay for an observer that has stopped to follow.
        """
        rests = self._gave_up_s is not None and abs(self._clock.now_s() - self._gave_up_s) < REST_S
        return 0.0 if rests else self._wait_ms / 1000

    def _ask_primary(self, question: Question[T]) -> T:
        journal = self.journal
        stamps = journal.sight.stamps
        try:
            with reading_at_least(journal.database, journal.name, journal.identity, stamps) as (state, stamp):
                journal.sight.settle(stamps, stamp)
                journal.sight.answered(stamp)
                return question(state)
        except BehindError as error:
            raise StateLostError(
                f"{error}: a failover or a restore lost it, or an old primary is back; nothing was read; see "
                "that LOCKGATE_JOURNAL_URL names the right server, then msync to go on with what it holds"
            ) from None

    def _compare(self, observer: Observer) -> ObserverStatus:
        try:
            with observer.reading(()) as (_, stamp):
                pass
        except (BehindError, *DOWN) as error:
            return ObserverStatus(name=observer.name, why_down=str(error))
        with self.journal.reading() as primary:
            newest = primary.status().stamp
            lacking = primary.entries(stamp.sequence, 1)
            lag_s = max(0.0, primary.now_s() - lacking[0].at_s) if lacking else 0.0
        metrics.observer_lag(observer.name, lag_s)
        return ObserverStatus(
            name=observer.name,
            stamp=stamp,
            behind_entries=max(0, newest.sequence - stamp.sequence),
            lag_s=lag_s,
            why_down=self._rota.why_down(observer),
        )


def _pauses(in_all_s: float) -> Iterator[float]:
    """Yield none, then pauses that grow; together they last as long as they may."""
    yield 0.0
    pause_s = _FIRST_PAUSE_S
    while in_all_s > 0:
        yield min(pause_s, in_all_s)
        in_all_s -= pause_s
        pause_s = min(_GROWTH * pause_s, _LONGEST_PAUSE_S)
