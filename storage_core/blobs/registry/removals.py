"""Entries about the removal of blobs: adopt, mark, and forget them after their bytes are deleted.

Source: Flink BLOB storage, "Staged Cleanup", "BlobServer Recovery (HA)".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Guarantee, Reference, UploadSet
from lockgate.storage_core.blobs.registry.references import is_ended, references_to, refuse_safe_mode
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State, prefix


class AdoptBlob(Op, frozen=True, tag="adopt-blob"):
    """Stage bytes that were found without a row.

    Attributes:
        upload_set: Upload set in the key.
    """

    RESULT: ClassVar = bool

    job_id: str
    blob_key: str
    upload_set: str
    guarantee: Guarantee
    size_bytes: int

    def touches(self) -> Iterable[Key]:
        return [(Blob, (self.job_id, self.blob_key)), (UploadSet, (self.upload_set,))]

    def fold(self, state: State, moment: Moment) -> bool:
        """Insert a staged blob, unless its uploader may still record it; return whether it was inserted."""
        if state.get(UploadSet, self.upload_set) is not None:
            return False
        if state.get(Blob, self.job_id, self.blob_key) is not None:
            return False
        state.put(
            Blob(
                job_id=self.job_id,
                blob_key=self.blob_key,
                guarantee=self.guarantee,
                use="other",
                name="",
                size_bytes=self.size_bytes,
                upload_set="",
                put_s=moment.at_s,
                staged_s=moment.at_s,
            )
        )
        return True


class _Removal(Op, frozen=True):
    """A step of a blob's removal."""

    job_id: str
    blob_key: str

    def touches(self) -> Iterable[Key]:
        return [(Blob, (self.job_id, self.blob_key)), (BlobJob, (self.job_id,))]

    def spans(self) -> Iterable[Span]:
        return [prefix(Reference, self.job_id, self.blob_key)]


class MarkDeleting(_Removal, frozen=True, tag="mark-deleting"):
    """Mark a blob for deletion: it then takes no reference, and its bytes may be deleted.

    Attributes:
        staged_for_s: Minimum time since it was staged; ignored for blobs of a final job.
    """

    RESULT: ClassVar = bool

    staged_for_s: float

    def fold(self, state: State, moment: Moment) -> bool:
        """Mark the blob if it is deletable; return whether its bytes may be deleted now."""
        refuse_safe_mode(moment, f"blob {self.job_id}/{self.blob_key}")
        blob = state.get(Blob, self.job_id, self.blob_key)
        if blob is None:
            return False
        if blob.deleting_s is not None:
            return True
        if not is_ended(state, self.job_id):
            if blob.staged_s is None or blob.staged_s + self.staged_for_s > moment.at_s:
                return False
            if references_to(state, blob):  # impossible by the other folds; checked to protect a live blob
                return False
        state.put(msgspec.structs.replace(blob, deleting_s=moment.at_s))
        return True


class RestageBlob(Op, frozen=True, tag="restage-blob"):
    """Restart the interval of a staged blob, because a restore may have lost a later reference."""

    job_id: str
    blob_key: str

    def touches(self) -> Iterable[Key]:
        return [(Blob, (self.job_id, self.blob_key))]

    def fold(self, state: State, moment: Moment) -> None:
        """Set the staging time to now, unless the blob is kept or marked for deletion."""
        blob = state.get(Blob, self.job_id, self.blob_key)
        if blob is not None and blob.staged_s is not None and blob.deleting_s is None:
            state.put(msgspec.structs.replace(blob, staged_s=moment.at_s))


class ForgetBlob(_Removal, frozen=True, tag="forget-blob"):
    """Delete the row of a blob whose bytes were deleted in every store."""

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Delete a marked blob and remaining references to it, which only an ended job's blob can have."""
        blob = state.get(Blob, self.job_id, self.blob_key)
        if blob is None:
            return
        if blob.deleting_s is None:
            raise ConflictError(f"blob {self.job_id}/{self.blob_key} is not marked as deleting; it stays")
        if is_ended(state, self.job_id):
            for reference in references_to(state, blob):
                state.delete(reference)
        state.delete(blob)


class ForgetBlobJob(Op, frozen=True, tag="forget-blob-job"):
    """Delete the row of a final job without blobs, after its folder was checked again.

    Attributes:
        final_for_s: Minimum time since it became final.
    """

    RESULT: ClassVar = bool

    job_id: str
    final_for_s: float

    def touches(self) -> Iterable[Key]:
        return [(BlobJob, (self.job_id,))]

    def fold(self, state: State, moment: Moment) -> bool:
        """Delete the row if the job has ended and has no blob; return whether it is gone."""
        job = state.get(BlobJob, self.job_id)
        if job is None:
            return True
        if job.final_s is None or job.final_s + self.final_for_s > moment.at_s:
            return False
        if state.has(Blob, job_id=self.job_id):
            return False
        state.delete(job)
        return True
