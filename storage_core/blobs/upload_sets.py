"""The upload sets of a blob server: those that it opens for others, and its own for single blobs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from storage_core.blobs.keys import UploadSetId, check_upload_set, new_upload_set
from storage_core.clock import Clock
from storage_core.journal import Journal, Mutation, Refused, Stamp
from storage_core.journal.forks import FORKS, Forkable
from storage_core.journal.leases import Leases
from storage_core.journal.ops.leases import DropLease, FreeLease, TakeLease
from storage_core.journal.ops.uploads import BeginUpload, upload_resource
from storage_core.journal.renewer import Renewer
from storage_core.journal.rows import UploadSet

RENEW_S: Final = 20.0
SOFT_S: Final = 60.0
HARD_S: Final = 1_200.0
"""Of the leases of upload sets: an uploader of which nothing was heard for so long is gone."""


class UploadSets(Forkable):
    """Opens upload sets, and renews the leases of those that this process uploads into.

    Args:
        journal: Has their rows and leases.
        clock: Waits between renewals.

    Attributes:
        renewer: Of the leases.
        own: This process's own set, None while it has none.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._leases = Leases(journal)
        self.renewer = Renewer(self._leases, every_s=RENEW_S, clock=clock)
        self.forked()
        FORKS.tell(self)

    def forked(self) -> None:
        """Begin without a set of one's own: the parent's is the parent's to renew and to complete."""
        self._opening = threading.Lock()
        self.own: UploadSetId | None = None

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

    def for_any(self) -> UploadSetId:
        """Return the set for single blobs of any job, open."""
        with self._opening:
            if self.own is None:
                self.own = self.begin("")
            return self.own

    def has_lost(self, own: UploadSetId) -> bool:
        """Tell whether this server's own set was given up; if so, the next put opens another one."""
        with self._journal.reading() as reading:
            if reading.get(UploadSet, own) is not None:
                return False
        with self._opening:
            if self.own == own:
                self.own = None
        return True

    def leave(self, upload_set: UploadSetId) -> None:
        """Put no more under a set if it is this process's own: it lapses, and the sweep takes what it had."""
        with self._opening:
            is_own = self.own == upload_set
            if is_own:
                self.own = None
        if is_own:
            self.drop(upload_set)

    def drop(self, upload_set: UploadSetId) -> None:
        """Renew a set's lease no more."""
        self.renewer.drop(upload_resource(upload_set))

    def take_own(self) -> UploadSetId | None:
        """Return this process's own set, which it has no more."""
        with self._opening:
            own, self.own = self.own, None
        return own
