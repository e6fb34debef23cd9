"""Entries about uploads: a set is open while its uploader lives, and its blobs are nobody's to clean up.

Source: Flink BLOB storage, "BlobServer Upload".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from lockgate.storage_core.blobs.registry.references import references_to, refuse_ended, refuse_safe_mode
from lockgate.storage_core.blobs.registry.rows import Blob, BlobJob, BlobUse, Guarantee, Reference, UploadSet
from lockgate.storage_core.errors import ConflictError, FencedError
from lockgate.storage_core.journal.entries.leases import LeaseState, state_of
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.rows import Lease
from lockgate.storage_core.journal.entries.state import Key, State


def upload_resource(upload_set: str) -> str:
    """Return the resource that an upload set's lease is on."""
    return f"upload:{upload_set}"


class BeginUpload(Op, frozen=True, tag="begin-upload"):
    """Open an upload set; its lease is taken in the same transaction, before this.

    Attributes:
        upload_set: Random, part of the keys of all its blobs.
        job_id: Of the job that the blobs are for; empty: of any.
    """

    upload_set: str
    job_id: str = ""

    def touches(self) -> Iterable[Key]:
        """Name the set and its job."""
        return [(UploadSet, (self.upload_set,)), (BlobJob, (self.job_id,))]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the set, if its job has not ended."""
        refuse_ended(state, self.job_id)
        state.put(UploadSet(upload_set=self.upload_set, job_id=self.job_id, began_s=moment.at_s))


class PutBlob(Op, frozen=True, tag="put-blob"):
    """Record a blob whose bytes stand where they belong, synced.

    Attributes:
        upload_set: That the key names; it is open, or nobody knows whether the bytes still stand.
        joins: Whether the blob is kept by the set until that is complete; the set is of its job then.
        owners: Whose references it has from the beginning; of none, and no set, it is staged.
        lapse_s: The references lapse so much later; None: they do not.
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
        """Name the blob, its set, its job, its references."""
        return [
            (Blob, (self.job_id, self.blob_key)),
            (UploadSet, (self.upload_set,)),
            (BlobJob, (self.job_id,)),
            *((Reference, (self.job_id, self.blob_key, owner)) for owner in self.owners),
        ]

    def fold(self, state: State, moment: Moment) -> str:
        """Insert the blob, and its references; returns its key: a repeated request learns the first one's."""
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


class CompleteUpload(Op, frozen=True, tag="complete-upload"):
    """The last blob of a set is in: all of them are staged, for a job that is to be submitted now."""

    RESULT: ClassVar = int

    upload_set: str

    def touches(self) -> Iterable[Key]:
        """Name the set and its lease."""
        return [(UploadSet, (self.upload_set,)), (Lease, (upload_resource(self.upload_set),))]

    def fold(self, state: State, moment: Moment) -> int:
        """Stage its blobs and close it; returns their number."""
        if state.get(UploadSet, self.upload_set) is None:
            raise FencedError(
                f"upload set {self.upload_set} is complete, or was given up after its lease had lapsed; "
                "nothing was changed; upload again in a new set"
            )
        return _close(state, self.upload_set, moment)


class AbandonUpload(Op, frozen=True, tag="abandon-upload"):
    """Give up a set whose uploader is gone: its blobs are staged, and it takes no more."""

    RESULT: ClassVar = int

    upload_set: str

    def touches(self) -> Iterable[Key]:
        """Name the set and its lease."""
        return [(UploadSet, (self.upload_set,)), (Lease, (upload_resource(self.upload_set),))]

    def fold(self, state: State, moment: Moment) -> int:
        """Close it, if its lease has lapsed; returns how many blobs it had."""
        refuse_safe_mode(moment, f"upload set {self.upload_set}")
        lease = state.get(Lease, upload_resource(self.upload_set))
        if lease is not None and state_of(lease, moment.at_s) not in {LeaseState.HARD, LeaseState.FREE}:
            raise ConflictError(
                f"upload set {self.upload_set}: its uploader {lease.holder} lives; nothing was changed"
            )
        return _close(state, self.upload_set, moment)


def _close(state: State, upload_set: str, moment: Moment) -> int:
    """Close a set, stage what it holds and nobody refers to, forget its lease."""
    blobs = state.where(Blob, upload_set=upload_set)
    # In one question for however many blobs: all who write wait for the answer.
    state.load_spans((Reference, blob.key) for blob in blobs)
    for blob in blobs:
        staged_s = None if references_to(state, blob) else moment.at_s
        state.put(msgspec.structs.replace(blob, upload_set="", staged_s=staged_s))
    opened = state.get(UploadSet, upload_set)
    if opened is not None:
        state.delete(opened)
    lease = state.get(Lease, upload_resource(upload_set))
    if lease is not None:
        state.delete(lease)
    return len(blobs)
