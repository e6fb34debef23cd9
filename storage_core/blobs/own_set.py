"""The upload set that a server puts single blobs of any job under.

A job that has ended is remembered while a set is open that began before its end, for a put that began before
it, too, may still ask to be recorded. So no set lasts: an old one takes no new put, and is completed when the
last put under it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.storage_core.blobs.keys import UploadSetId
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.server.upload_sets import UploadSets


@dataclass
class _Own:
    """An open set of this process.

    Attributes:
        since_s: When it was asked for, by this process's clock.
        puts: Under way under it.
        lapses: Something may be on its way to a store that nobody records: it is not completed at once.
    """

    upload_set: UploadSetId
    since_s: float
    puts: int = 0
    lapses: bool = False


class OwnSet(Forkable):
    """Opens a set where there is none, and ends it in time. Safe to use from several threads.

    Args:
        sets: Opens, renews and completes.
        clock: Tells how old a set is.
        lasts_s: An older set takes no new put.
    """

    def __init__(self, sets: UploadSets, clock: Clock, *, lasts_s: float) -> None:
        self._sets = sets
        self._clock = clock
        self._lasts_s = lasts_s
        self.forked()
        FORKS.tell(self)

    def forked(self) -> None:
        """Begin without a set: the parent's is the parent's to renew and to complete."""
        self._changing = threading.Lock()
        self._open: dict[UploadSetId, _Own] = {}
        self._latest: _Own | None = None

    @property
    def latest(self) -> UploadSetId | None:
        """The set that takes new puts, None while there is none."""
        return None if self._latest is None else self._latest.upload_set

    @contextmanager
    def held(self) -> Iterator[UploadSetId]:
        """Hold the set for a put: it is not completed before the block's end."""
        self.end_old()
        opened = self._open
        with self._changing:
            own = self._latest = self._latest or self._begun()
            own.puts += 1
        try:
            yield own.upload_set
        finally:
            if opened is self._open:  # not in a fork, nor after the end
                with self._changing:
                    own.puts -= 1
                self._end_if_over(own)

    def end_old(self) -> None:
        """Let a set that is old take no new put."""
        with self._changing:
            own = self._latest
            # Below 0 the clock was put back: nobody knows how old it is.
            if own is None or 0 <= self._clock.now_s() - own.since_s < self._lasts_s:
                return
            self._latest = None
        self._end_if_over(own)

    def leave(self, upload_set: UploadSetId) -> None:
        """Put no more under a set if it is this process's own: it lapses, and the sweep takes what it had."""
        with self._changing:
            own = self._open.get(upload_set)
            if own is None:
                return
            own.lapses = True
            self._put_no_more_under(own)
        self._end_if_over(own)

    def lost(self, upload_set: UploadSetId) -> None:
        """Put no more under a set that was given up, or may be; the next put opens another one."""
        with self._changing:
            own = self._open.get(upload_set)
            if own is None:
                return
            self._put_no_more_under(own)
        self._end_if_over(own)

    def close(self) -> None:
        """Complete all: what is under way under them is refused."""
        with self._changing:
            opened, self._open, self._latest = self._open, {}, None
        for own in opened.values():
            self._end(own)

    def _begun(self) -> _Own:
        since_s = self._clock.now_s()
        own = _Own(self._sets.begin(""), since_s)
        self._open[own.upload_set] = own
        return own

    def _put_no_more_under(self, own: _Own) -> None:
        if self._latest is own:
            self._latest = None

    def _end_if_over(self, own: _Own) -> None:
        with self._changing:
            is_over = own is not self._latest and not own.puts
            if not is_over or self._open.pop(own.upload_set, None) is None:
                return
        self._end(own)

    def _end(self, own: _Own) -> None:
        """Complete a set, or let it lapse. Nothing is locked here: who renews may wait for it."""
        with suppress(LockgateError):  # it lapses, too, where the journal does not answer
            if not own.lapses:
                self._sets.complete(own.upload_set)
        self._sets.drop(own.upload_set)
