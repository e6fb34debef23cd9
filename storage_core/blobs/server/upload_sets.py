"""The upload sets of a blob server: those that it opens for others, and its own for single blobs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from lockgate.storage_core.blobs.keys import UploadSetId, check_upload_set, new_upload_set
from lockgate.storage_core.blobs.own_set import OwnSet
from lockgate.storage_core.blobs.registry.rows import UploadSet
from lockgate.storage_core.blobs.registry.uploads import BeginUpload, CompleteUpload, upload_resource
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.journal import Journal, Mutation, Refused, Stamp
from lockgate.storage_core.journal.entries.leases import DropLease, FreeLease, TakeLease
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
        self.own = OwnSet(self, clock, lasts_s=own_lasts_s)
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
            self.own.lost(own)
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

    def __init__(self, leases: Leases, own: OwnSet) -> None:
        self._leases = leases
        self._own = own

    def renew(self, holder: str, held: Mapping[str, Stamp]) -> Mapping[str, str]:
        """Renew all that a holder holds, and end this process's own set if it is old, or is lost."""
        lost = self._leases.renew(holder, held)
        latest = self._own.latest
        if latest is not None and upload_resource(latest) in lost:
            self._own.lost(latest)
        self._own.end_old()
        return lost
