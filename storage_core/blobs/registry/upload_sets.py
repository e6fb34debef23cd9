"""Upload set: a group of blobs that are uploaded together; and the entries about it.

A set is open while its uploader lives, and keeps its blobs until it is complete.
Its row is in `blob_rows.py`.

Source: Flink BLOB storage, "BlobServer Upload".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from lockgate.storage_core.blobs.registry.blob_rows import (
    Blob,
    BlobJob,
    BlobUse,
    Guarantee,
    Reference,
    UploadSet,
)
from lockgate.storage_core.blobs.registry.references import references_to, refuse_ended, refuse_safe_mode
from lockgate.storage_core.errors import ConflictError, FencedError
from lockgate.storage_core.journal.entries.lease_entries import Lease, LeaseState, Seen, state_for
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix


def upload_resource(upload_set: str) -> str:
    """Return the resource of an upload set's lease."""
    return f"upload:{upload_set}"


class BeginUpload(Op, frozen=True, tag="begin-upload"):
    """Open an upload set. Its lease is taken earlier in the same transaction.

    Attributes:
        upload_set: Random id, part of the keys of all its blobs.
        job_id: Id of the blobs' job; empty: any job.
    """

    upload_set: str
    job_id: str = ""

    def touches(self) -> Iterable[Key]:
        return [(UploadSet, (self.upload_set,)), (BlobJob, (self.job_id,))]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the set unless its job has ended."""
        refuse_ended(state, self.job_id)
        state.put(UploadSet(upload_set=self.upload_set, job_id=self.job_id, began_s=moment.at_s))


class PutBlob(Op, frozen=True, tag="put-blob"):
    """Record a blob whose bytes are stored durably.

    Attributes:
        upload_set: Upload set in the key. It must be open, as otherwise the bytes may have been deleted.
        joins: Whether the set keeps the blob until it is complete; the set must then be for the blob's job.
        owners: Owners of its first references; without any, and without a set, it is staged.
        lapse_s: Time after which the references lapse; None: they do not lapse.
    """

    RESULT: ClassVar = str

    job_id: str
    blob_key: str
    upload_set: str
    guarantee: Guarantee
    use: BlobUse
    name: str
    size_bytes: int
    joins: bool = False
    owners: tuple[str, ...] = ()
    lapse_s: float | None = None

    def touches(self) -> Iterable[Key]:
        return [
            (Blob, (self.job_id, self.blob_key)),
            (UploadSet, (self.upload_set,)),
            (BlobJob, (self.job_id,)),
            *((Reference, (self.job_id, self.blob_key, owner)) for owner in self.owners),
        ]

    def fold(self, state: State, moment: Moment) -> str:
        """Insert the blob and its references; return its key, a repeated request gets the first one's."""
        refuse_ended(state, self.job_id)
        opened = state.get(UploadSet, self.upload_set)
        if opened is None:
            raise FencedError(
                f"blob {self.job_id}/{self.blob_key}: its upload set {self.upload_set} is complete, or was "
                "given up; the blob was not recorded; put it again in a new set"
            )
        if self.joins and opened.job_id != self.job_id:
            raise ConflictError(
                f"blob {self.job_id}/{self.blob_key}: upload set {self.upload_set} is for other blobs; the "
                f"blob was not recorded; put it in a set that was opened for job {self.job_id}"
            )
        is_kept = self.joins or bool(self.owners)
        state.put(
            Blob(
                job_id=self.job_id,
                blob_key=self.blob_key,
                guarantee=self.guarantee,
                use=self.use,
                name=self.name,
                size_bytes=self.size_bytes,
                upload_set=self.upload_set if self.joins else "",
                put_s=moment.at_s,
                staged_s=None if is_kept else moment.at_s,
            )
        )
        for owner in self.owners:
            state.put(
                Reference(
                    job_id=self.job_id,
                    blob_key=self.blob_key,
                    owner=owner,
                    taken_s=moment.at_s,
                    until_s=None if self.lapse_s is None else moment.at_s + self.lapse_s,
                )
            )
        return self.blob_key


class _Closing(Op, frozen=True):
    """The end of an upload set."""

    RESULT: ClassVar = int

    upload_set: str

    def touches(self) -> Iterable[Key]:
        return [(UploadSet, (self.upload_set,)), (Lease, (upload_resource(self.upload_set),))]

    def _close(self, state: State, moment: Moment) -> int:
        """Stage the set's unreferenced blobs, delete it and its lease; return the number of its blobs."""
        blobs = state.where(Blob, upload_set=self.upload_set)
        # In one query for any number of blobs, because all writers wait for it.
        state.load_spans(prefix(Reference, *blob.key) for blob in blobs)
        _stage(state, moment, blobs)
        opened = state.get(UploadSet, self.upload_set)
        if opened is not None:
            state.delete(opened)
        lease = state.get(Lease, upload_resource(self.upload_set))
        if lease is not None:
            state.delete(lease)
        return len(blobs)


class StageUploaded(Op, frozen=True, tag="stage-uploaded"):
    """Take a page of blobs out of a set that its uploader completes, so that no writer waits for all."""

    RESULT: ClassVar = int

    upload_set: str
    job_id: str
    blob_keys: tuple[str, ...]

    def touches(self) -> Iterable[Key]:
        return [(Blob, (self.job_id, blob_key)) for blob_key in self.blob_keys]

    def spans(self) -> Iterable[Span]:
        return [prefix(Reference, self.job_id, blob_key) for blob_key in self.blob_keys]

    def fold(self, state: State, moment: Moment) -> int:
        """Stage the unreferenced of the blobs that are in the set; return the number of those in it."""
        keys = [(self.job_id, blob_key) for blob_key in self.blob_keys]
        return _stage_those_in(state, moment, self.upload_set, keys)


class CompleteUpload(_Closing, frozen=True, tag="complete-upload"):
    """Complete an upload set: its blobs are staged until their job is submitted."""

    def fold(self, state: State, moment: Moment) -> int:
        """Stage the set's blobs and close it; return their number."""
        if state.get(UploadSet, self.upload_set) is None:
            raise FencedError(
                f"upload set {self.upload_set} is complete, or was given up after its lease had lapsed; "
                "nothing was changed; upload again in a new set"
            )
        return self._close(state, moment)


class AbandonUpload(_Closing, frozen=True, tag="abandon-upload"):
    """Abandon a set whose uploader has failed: its blobs are staged, and it takes no more.

    Attributes:
        seen: Its lapsed lease. It is refused if it was renewed since.
        page: Job and key of some of its blobs, so that other writers need not wait for all. Then only these
            are staged, and the set stays, without its lease: its uploader cannot renew it any more, and the
            next sweep goes on after a crash. Empty: all blobs, and the set's end.
    """

    seen: Seen | None = None
    page: tuple[tuple[str, str], ...] = ()

    def touches(self) -> Iterable[Key]:
        return [*super().touches(), *((Blob, key) for key in self.page)]

    def spans(self) -> Iterable[Span]:
        return [prefix(Reference, *key) for key in self.page]

    def fold(self, state: State, moment: Moment) -> int:
        """Stage the blobs if the set's lease has lapsed, and close the set; return the number of blobs."""
        refuse_safe_mode(moment, f"upload set {self.upload_set}")
        lease = state.get(Lease, upload_resource(self.upload_set))
        before = LeaseState.FREE if lease is None else state_for(self.seen, lease, moment.at_s)
        if lease is not None and before not in {LeaseState.HARD, LeaseState.FREE}:
            raise ConflictError(
                f"upload set {self.upload_set}: its uploader {lease.holder} lives; nothing was changed"
            )
        if not self.page:
            return self._close(state, moment)
        if lease is not None:
            state.delete(lease)
        return _stage_those_in(state, moment, self.upload_set, self.page)


def _stage_those_in(state: State, moment: Moment, upload_set: str, keys: Iterable[tuple[str, str]]) -> int:
    """Stage the unreferenced of the blobs that are in the set; return the number of those in it."""
    found = [state.get(Blob, *key) for key in keys]
    blobs = [blob for blob in found if blob is not None and blob.upload_set == upload_set]
    _stage(state, moment, blobs)
    return len(blobs)


def _stage(state: State, moment: Moment, blobs: Iterable[Blob]) -> None:
    """Take blobs out of their upload set, and stage those without a reference."""
    for blob in blobs:
        staged_s = None if references_to(state, blob) else moment.at_s
        state.put(msgspec.structs.replace(blob, upload_set="", staged_s=staged_s))
