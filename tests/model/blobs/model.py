"""A model of a blob server in a few dictionaries: blobs that are kept, staged or possibly deleted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.registry.blob_rows import Guarantee
from lockgate.storage_core.errors import ConflictError, FencedError, LockgateError, ObjectNotFoundError

INTERVAL_S: Final = 1_800.0
HARD_S: Final = 1_200.0

Key = tuple[str, BlobKey]


class Refused(Exception):  # noqa: N818 - an answer, and no fault
    """The model refuses a change.

    Attributes:
        kind: Type of the expected error.
    """

    def __init__(self, kind: type[LockgateError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


@dataclass(frozen=True)
class KnownBlob:
    """A blob as described by its row and references.

    Attributes:
        owners: Expiry of each owner's reference; None if it lasts until it is dropped.
        is_log: Whether it is a log, which is deleted immediately with its last reference.
    """

    guarantee: Guarantee
    upload_set: str
    staged_s: float | None
    is_marked: bool
    owners: tuple[tuple[str, float | None], ...] = ()
    is_log: bool = False

    def with_owner(self, owner: str, until_s: float | None) -> KnownBlob:
        owners = {**dict(self.owners), owner: until_s}
        return replace(self, owners=tuple(sorted(owners.items())), staged_s=None)

    def without(self, owners: Collection[str], now_s: float) -> KnownBlob:
        """Drop references; without the last one the blob is staged unless its set keeps it."""
        left = tuple(one for one in self.owners if one[0] not in owners)
        if left == self.owners:
            return self
        is_kept = left or self.upload_set or self.staged_s is not None
        return replace(self, owners=left, staged_s=self.staged_s if is_kept else now_s)

    def closed(self, now_s: float) -> KnownBlob:
        """Return the blob after the end of its upload set."""
        return replace(self, upload_set="", staged_s=None if self.owners else now_s)


@dataclass
class BlobsModel:
    """The state of all blobs.

    Attributes:
        final: End time of each ended job.
        sets: Job of each open upload set of a client.
        lost: Referenced blobs that do not exist; always empty.
    """

    blobs: dict[Key, KnownBlob] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    lost: set[tuple[str, str]] = field(default_factory=set)

    def changed(self, change: Callable[[BlobsModel], None]) -> BlobsModel:
        """Return the state after the change.

        Raises:
            Refused: The change is not allowed.
        """
        after = BlobsModel(dict(self.blobs), dict(self.final), copy.copy(self.sets))
        change(after)
        return after

    def begin(self, upload_set: str, job_id: str) -> None:
        self.refuse_ended(job_id)
        self.sets[upload_set] = job_id

    def check_put(self, job_id: str, upload_set: str) -> None:
        self.refuse_ended(job_id)
        if upload_set and upload_set not in self.sets:
            raise Refused(FencedError)
        if upload_set and self.sets[upload_set] != job_id:
            raise Refused(ConflictError)

    def complete(self, upload_set: str, now_s: float) -> None:
        if self.sets.pop(upload_set, None) is None:
            raise Refused(FencedError)
        self._close({upload_set}, now_s)

    def submit(self, job_id: str, keys: Collection[Key]) -> None:
        self.refuse_ended(job_id)
        for key in keys:
            self._refer(key, "job", None)

    def refer(self, key: Key, owner: str, until_s: float | None) -> None:
        self.refuse_ended(key[0])
        self._refer(key, owner, until_s)

    def drop(self, key: Key, owner: str, now_s: float) -> None:
        if key in self.blobs:
            blob = self.blobs[key] = self.blobs[key].without({owner}, now_s)
            if blob.is_log and blob.guarantee == "recreatable" and blob.staged_s is not None:
                del self.blobs[key]

    def drop_owner(self, owner: str, now_s: float) -> None:
        for key in [key for key, blob in self.blobs.items() if owner in dict(blob.owners)]:
            self.drop(key, owner, now_s)

    def fail(self, job_id: str, now_s: float) -> None:
        for key, blob in self.blobs.items():
            if key[0] == job_id and blob.guarantee == "recreatable":
                self.blobs[key] = blob.without({owner for owner, _ in blob.owners}, now_s)

    def finish(self, job_id: str, now_s: float) -> None:
        self.final.setdefault(job_id, now_s)

    def forget(self, key: Key) -> None:
        """Forget a blob."""
        del self.blobs[key]

    def lapse(self, now_s: float) -> None:
        """Drop the expired references."""
        for key, blob in self.blobs.items():
            late = {owner for owner, until_s in blob.owners if until_s is not None and until_s <= now_s}
            self.blobs[key] = blob.without(late, now_s)

    def abandon(self, upload_sets: Collection[str], now_s: float) -> None:
        """Close the sets of dead uploaders."""
        for upload_set in upload_sets:
            self.sets.pop(upload_set, None)
        self._close(set(upload_sets), now_s)

    def is_due(self, key: Key, now_s: float) -> bool:
        """Return whether a sweep deletes a blob."""
        blob = self.blobs[key]
        staged_s = blob.staged_s
        is_old = staged_s is not None and staged_s + INTERVAL_S <= now_s
        return blob.is_marked or key[0] in self.final or is_old

    def sweep(self, now_s: float, own_since_s: float) -> None:
        """Delete the blobs that are due, and forget jobs that have had no blobs for an interval.

        Args:
            now_s: Time of the sweep.
            own_since_s: Start of the server's oldest own set: a put that began before a job's
                end may still use it.
        """
        self.blobs = {key: blob for key, blob in self.blobs.items() if not self.is_due(key, now_s)}
        self.final = {
            job_id: final_s
            for job_id, final_s in self.final.items()
            if final_s + INTERVAL_S > now_s or job_id in self.sets.values() or own_since_s <= final_s
        }

    def live(self) -> list[Key]:
        """Return the blobs that must have bytes: neither marked by a sweep nor deleted with a job."""
        return [key for key, blob in self.blobs.items() if not blob.is_marked and key[0] not in self.final]

    def refuse_ended(self, job_id: str) -> None:
        if job_id in self.final:
            raise Refused(FencedError)

    def _refer(self, key: Key, owner: str, until_s: float | None) -> None:
        blob = self.blobs.get(key)
        if blob is None or blob.is_marked:
            raise Refused(ObjectNotFoundError)
        self.blobs[key] = blob.with_owner(owner, until_s)

    def _close(self, upload_sets: Collection[str], now_s: float) -> None:
        for key, blob in self.blobs.items():
            if blob.upload_set and blob.upload_set in upload_sets:
                self.blobs[key] = blob.closed(now_s)
