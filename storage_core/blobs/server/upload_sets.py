"""The upload sets of a blob server: those that it opens for others, and its own for single blobs of any job.

An ended job is remembered until every upload set opened before its end is closed, because a put started then
may still be recorded. So the server's own sets are rotated: an old one takes no new put, and is completed
when the last put under it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from lockgate.storage_core.blobs.keys import UploadSetId, check_upload_set, new_upload_set
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal import Journal, Mutation, Refused, Stamp
from lockgate.storage_core.journal.entries.leases import DropLease, FreeLease, TakeLease
from lockgate.storage_core.journal.entries.rows import UploadSet
from lockgate.storage_core.journal.entries.uploads import BeginUpload, CompleteUpload, upload_resource
from lockgate.storage_core.journal.leases.leases import Leases
from lockgate.storage_core.journal.leases.renewer import Renewer

RENEW_S: Final = 20.0
SOFT_S: Final = 60.0
HARD_S: Final = 1_200.0
"""Of the leases of upload sets: an uploader of which nothing was heard for so long is gone."""


class UploadSets:
    """Opens upload sets, and renews the leases of those that this process uploads into.

    Args:
        journal: Has their rows and leases.
        clock: Waits between renewals.
        own_lasts_s: This process's own set takes no new put when it is older.

    Attributes:
        own: This process's own set, for single blobs.
        renewer: Of the leases.
    """

    def __init__(self, journal: Journal, clock: Clock, *, own_lasts_s: float) -> None:
        self._journal = journal
        self._clock = clock
        self._leases = Leases(journal)
        self.own = ServerUploadSet(self, clock, lasts_s=own_lasts_s)
        self.renewer = Renewer(_Beat(self._leases, self.own), every_s=RENEW_S, clock=clock)

    def begin(self, job_id: str) -> UploadSetId:
        """Open a set for blobs of a job, empty for any; its lease is renewed until it is dropped."""
        since_s = self._clock.now_s()
        upload_set, stamp = self.take(self.renewer.holder, job_id)
        self.renewer.keep(upload_resource(upload_set), stamp, since_s=since_s)
        return upload_set

    def take(self, holder: str, job_id: str) -> tuple[UploadSetId, Stamp]:
        """Open a set for an uploader that renews its lease itself; returns the stamp to renew it with.

        Args:
            holder: The uploader.
            job_id: Of the job that the blobs are for; empty: of any.
        """
        upload_set = new_upload_set()
        resource = upload_resource(upload_set)
        lease = TakeLease(resource=resource, holder=holder, purpose="write", soft_s=SOFT_S, hard_s=HARD_S)
        taken, begun = self._journal.write(
            [Mutation(op=lease), Mutation(op=BeginUpload(upload_set=upload_set, job_id=job_id))]
        )
        if isinstance(taken, Refused):
            raise taken.error
        stamp: Stamp = taken.result.stamp
        if isinstance(begun, Refused):
            self._journal.write(
                [
                    Mutation(op=FreeLease(resource=resource, stamp=stamp)),
                    Mutation(op=DropLease(resource=resource)),
                ]
            )
            raise begun.error
        return upload_set, stamp

    def renew(self, holder: str, held: Mapping[UploadSetId, Stamp]) -> dict[UploadSetId, str]:
        """Renew the leases of an uploader that is another process; returns a word about each that is lost."""
        names = {upload_resource(check_upload_set(upload_set)): upload_set for upload_set in held}
        lost = self._leases.renew(
            holder, {resource: held[upload_set] for resource, upload_set in names.items()}
        )
        return {names[resource]: words for resource, words in lost.items()}

    def complete(self, upload_set: UploadSetId, request_id: str | None = None) -> int:
        """Stage a set's blobs and close it; returns their number. See `Blobs.complete_set`."""
        count: int = self._journal.apply(CompleteUpload(upload_set=upload_set), request_id).result
        self.drop(upload_set)
        return count

    def has_lost(self, own: UploadSetId) -> bool:
        """Tell whether this server's own set is known to be given up; the next put opens another one then."""
        is_lost = False
        with suppress(LockgateError), self._journal.reading() as reading:
            is_lost = reading.get(UploadSet, own) is None
        if is_lost:
            self.own.retire(own, lapses=False)
        return is_lost

    def drop(self, upload_set: UploadSetId) -> None:
        """Renew a set's lease no more."""
        self.renewer.drop(upload_resource(upload_set))

    def close(self) -> None:
        """Complete this process's own set, and renew no lease any more."""
        self.own.close()
        self.renewer.close()


class _Beat:
    """What is done at each renewal: also where nobody puts, this process's own set is not to last."""

    def __init__(self, leases: Leases, own: ServerUploadSet) -> None:
        self._leases = leases
        self._own = own

    def renew(self, holder: str, held: Mapping[str, Stamp]) -> Mapping[str, str]:
        """Renew all that a holder holds, and end this process's own set if it is old, or is lost."""
        lost = self._leases.renew(holder, held)
        latest = self._own.latest
        if latest is not None and upload_resource(latest) in lost:
            self._own.retire(latest, lapses=False)
        self._own.end_old()
        return lost


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


class ServerUploadSet(Forkable):
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
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
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

    def retire(self, upload_set: UploadSetId, *, lapses: bool) -> None:
        """Put no more under a set if it is this process's own; the next put opens another one.

        Args:
            upload_set: Any set.
            lapses: It is not completed: the sweep takes what it had.
        """
        with self._changing:
            own = self._open.get(upload_set)
            if own is None:
                return
            own.lapses = own.lapses or lapses
            if self._latest is own:
                self._latest = None
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
