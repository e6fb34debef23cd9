"""Upload sets: groups of blobs that are uploaded together, and kept until the set is complete.

A blob server opens sets for clients, and its own sets for single puts.

An ended job is remembered until every upload set opened before its end is closed, because a put started then
may still be recorded. So the server rotates its own sets: an old set takes no new put, and is completed when
its last put has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from lockgate.storage_core.blobs.keys import UploadSetId, check_upload_set, new_upload_set
from lockgate.storage_core.blobs.registry.blob_rows import Blob, UploadSet
from lockgate.storage_core.blobs.registry.queries import PAGE
from lockgate.storage_core.blobs.registry.upload_sets import (
    BeginUpload,
    CompleteUpload,
    StageUploaded,
    upload_resource,
)
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.forks import FORKS, Forkable
from lockgate.storage_core.journal import Journal, Mutation, Refused, Stamp
from lockgate.storage_core.journal.entries.lease_entries import DropLease, FreeLease, TakeLease
from lockgate.storage_core.journal.leases.lease import Leases
from lockgate.storage_core.journal.leases.renewer import Renewer
from lockgate.storage_core.stores.protocol import in_pages

RENEW_S: Final = 20.0
SOFT_S: Final = 60.0
HARD_S: Final = 1_200.0
"""Expiry of the leases of upload sets: an uploader that was silent this long is gone."""


class UploadSets:
    """Open upload sets, and renew the leases of those that this process uploads to.

    Attributes:
        own: This process's own set, for single puts.
        renewer: Renews the leases.
    """

    def __init__(self, journal: Journal, clock: Clock, *, own_max_age_s: float) -> None:
        self._journal = journal
        self._clock = clock
        self._leases = Leases(journal)
        self.own = ServerUploadSet(self, clock, max_age_s=own_max_age_s)
        self.renewer = Renewer(self._renew_own, every_s=RENEW_S, clock=clock)

    def begin(self, job_id: str) -> UploadSetId:
        """Open a set for a job, or for any job if `job_id` is empty, and renew its lease until `drop`."""
        since_s = self._clock.monotonic_s()
        upload_set, stamp = self.take(self.renewer.holder, job_id)
        self.renewer.keep(upload_resource(upload_set), stamp, since_s=since_s)
        return upload_set

    def take(self, holder: str, job_id: str) -> tuple[UploadSetId, Stamp]:
        """Open a set for an uploader that renews it; return the set and the stamp to renew it with."""
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
        """Renew the leases of an uploader in another process; return a message for each one that is lost."""
        names = {upload_resource(check_upload_set(upload_set)): upload_set for upload_set in held}
        lost = self._leases.renew(
            holder, {resource: held[upload_set] for resource, upload_set in names.items()}
        )
        return {names[resource]: message for resource, message in lost.items()}

    def complete(self, upload_set: UploadSetId, request_id: str | None = None) -> int:
        """Stage a set's blobs, close the set, and return their number; see `Blobs.complete_set`."""
        staged = 0
        with saying_what_stands() as done:
            for entry in self._full_pages(upload_set):
                staged += self._journal.apply(entry).result
                done.stands = (
                    f"{staged:,} of its blobs were staged, and are deleted after the retention interval "
                    "unless a job takes them; repeat the call, or if the set is gone, upload again in a new "
                    "set"
                )
            last: int = self._journal.apply(CompleteUpload(upload_set=upload_set), request_id).result
        self.drop(upload_set)
        return staged + last

    def has_lost(self, own: UploadSetId) -> bool:
        """Return whether a set of this server is known to be closed; the next put then opens another."""
        is_lost = False
        with suppress(LockgateError), self._journal.reading() as reading:
            is_lost = reading.get(UploadSet, own) is None
        if is_lost:
            self.own.retire(own, lapses=False)
        return is_lost

    def drop(self, upload_set: UploadSetId) -> None:
        """Stop renewing a set's lease."""
        self.renewer.drop(upload_resource(upload_set))

    def close(self) -> None:
        """Complete this process's own set, and stop renewing leases."""
        self.own.close()
        self.renewer.close()

    def _full_pages(self, upload_set: UploadSetId) -> Iterator[StageUploaded]:
        """Yield the entries that stage a large set's blobs page by page, and leave less than a page."""
        with self._journal.reading() as reading:
            blobs = reading.within(Blob, ("upload_set",), [(upload_set,)])
        for job_id, of_job in groupby(sorted(blobs, key=attrgetter("key")), key=attrgetter("job_id")):
            for page in in_pages(of_job, PAGE):
                if len(page) == PAGE:
                    keys = tuple(blob.blob_key for blob in page)
                    yield StageUploaded(upload_set=upload_set, job_id=job_id, blob_keys=keys)

    def _renew_own(self, holder: str, held: Mapping[str, Stamp]) -> Mapping[str, str]:
        """Renew a holder's leases; retire this process's own set if it is old or lost."""
        lost = self._leases.renew(holder, held)
        latest = self.own.latest
        if latest is not None and upload_resource(latest) in lost:
            self.own.retire(latest, lapses=False)
        self.own.end_old()
        return lost


@dataclass
class _OpenSet:
    """An open set of this process.

    Attributes:
        since_s: Time when it was requested, by this process's monotonic clock.
        puts: Number of puts under way.
        lapses: Whether unrecorded bytes may still reach a store: the set is not completed, but lapses.
    """

    upload_set: UploadSetId
    since_s: float
    puts: int = 0
    lapses: bool = False


class ServerUploadSet(Forkable):
    """The set for a process's single puts, opened on demand and rotated. Safe to use from several threads."""

    def __init__(self, sets: UploadSets, clock: Clock, *, max_age_s: float) -> None:
        self._sets = sets
        self._clock = clock
        self._max_age_s = max_age_s
        self.after_fork_in_child()
        FORKS.register(self)

    def after_fork_in_child(self) -> None:
        """Start without a set: the parent renews and completes its set."""
        self._changing = threading.Lock()
        self._open: dict[UploadSetId, _OpenSet] = {}
        self._latest: _OpenSet | None = None

    @property
    def latest(self) -> UploadSetId | None:
        """The set that takes new puts, None if there is none."""
        return None if self._latest is None else self._latest.upload_set

    @contextmanager
    def in_use(self) -> Iterator[UploadSetId]:
        """Yield the set for a put, and keep it open until the block ends."""
        self.end_old()
        opened = self._open
        with self._changing:
            own = self._latest = self._latest or self._begin()
            own.puts += 1
        try:
            yield own.upload_set
        finally:
            if opened is self._open:  # not in a fork, nor after the end
                with self._changing:
                    own.puts -= 1
                self._end_if_over(own)

    def end_old(self) -> None:
        """Retire the set if it is old."""
        with self._changing:
            own = self._latest
            if own is None or self._clock.monotonic_s() - own.since_s < self._max_age_s:
                return
            self._latest = None
        self._end_if_over(own)

    def retire(self, upload_set: UploadSetId, *, lapses: bool) -> None:
        """Take no new puts for a set if it is this process's own; the next put opens another set.

        Args:
            upload_set: Id of any set.
            lapses: Let it lapse instead of completing it: the sweep checks its bytes.
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
        """Complete all sets: puts under way are refused."""
        with self._changing:
            opened, self._open, self._latest = self._open, {}, None
        for own in opened.values():
            self._end(own)

    def _begin(self) -> _OpenSet:
        since_s = self._clock.monotonic_s()
        own = _OpenSet(self._sets.begin(""), since_s)
        self._open[own.upload_set] = own
        return own

    def _end_if_over(self, own: _OpenSet) -> None:
        with self._changing:
            is_over = own is not self._latest and not own.puts
            if not is_over or self._open.pop(own.upload_set, None) is None:
                return
        self._end(own)

    def _end(self, own: _OpenSet) -> None:
        """Complete a set, or let it lapse. The lock is not held: the renewing thread may wait for it."""
        with suppress(LockgateError):  # without an answer from the journal it lapses
            if not own.lapses:
                self._sets.complete(own.upload_set)
        self._sets.drop(own.upload_set)


class PartlyDone(msgspec.Struct):
    """What a call has done before it failed.

    Attributes:
        stands: What the pages before have changed, and what to do; empty before the first page.
    """

    stands: str = ""


@contextmanager
def saying_what_stands() -> Iterator[PartlyDone]:
    """Add to an error what the pages before have changed; it keeps its type.

    The text of a page's error knows only its own page, and says that nothing was changed. So only its first
    part, the reason, is kept.
    """
    done = PartlyDone()
    try:
        yield done
    except LockgateError as error:
        if not done.stands:
            raise
        raise type(error)(f"{reason_of(error)}; {done.stands}") from error


def reason_of(error: LockgateError) -> str:
    """Return the first part of an error's message, before its effect and the next step."""
    return str(error).partition("; ")[0]
