"""Entries about blobs that go: found, marked, forgotten when their bytes are gone.

Source: Flink BLOB storage, "Staged Cleanup", "BlobServer Recovery (HA)".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from lockgate.storage_core.blobs.registry.references import is_ended, references_to, refuse_safe_mode
from lockgate.storage_core.blobs.registry.rows import Blob, BlobJob, Guarantee, Reference, UploadSet
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Span, State


class AdoptBlob(Op, frozen=True, tag="adopt-blob"):
    """Bytes without a row were found: they are staged, as whatever nothing refers to.

    Attributes:
        upload_set: That the key names.
    """

    RESULT: ClassVar = bool

    job_id: str
    blob_key: str
    upload_set: str
    guarantee: Guarantee
    size_bytes: int

    def touches(self) -> Iterable[Key]:
        """Name the blob and its set."""
        return [(Blob, (self.job_id, self.blob_key)), (UploadSet, (self.upload_set,))]

    def fold(self, state: State, moment: Moment) -> bool:
        """Insert a staged blob, unless somebody may still record it; returns whether it was inserted."""
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


class MarkDeleting(Op, frozen=True, tag="mark-deleting"):
    """A blob is to go: from here on it takes no reference, and its bytes may be deleted.

    Attributes:
        staged_for_s: It must have been staged for so long at least; a final job's blobs need not.
    """

    RESULT: ClassVar = bool

    job_id: str
    blob_key: str
    staged_for_s: float

    def touches(self) -> Iterable[Key]:
        """Name the blob and its job."""
        return [(Blob, (self.job_id, self.blob_key)), (BlobJob, (self.job_id,))]

    def spans(self) -> Iterable[Span]:
        """Name the references to the blob."""
        return [(Reference, (self.job_id, self.blob_key))]

    def fold(self, state: State, moment: Moment) -> bool:
        """Mark it if it may go; returns whether its bytes may be deleted now."""
        refuse_safe_mode(moment, f"blob {self.job_id}/{self.blob_key}")
        blob = state.get(Blob, self.job_id, self.blob_key)
        if blob is None:
            return False
        if blob.deleting_s is not None:
            return True
        if not is_ended(state, self.job_id):
            if blob.staged_s is None or blob.staged_s + self.staged_for_s > moment.at_s:
                return False
            if references_to(state, blob):  # never by the folds above; a live blob is worth the question
                return False
        state.put(msgspec.structs.replace(blob, deleting_s=moment.at_s))
        return True


class RestageBlob(Op, frozen=True, tag="restage-blob"):
    """A blob that is staged is so from now on: a restore may have lost who has referred to it since."""

    job_id: str
    blob_key: str

    def touches(self) -> Iterable[Key]:
        """Name the blob."""
        return [(Blob, (self.job_id, self.blob_key))]

    def fold(self, state: State, moment: Moment) -> None:
        """Give it a whole interval anew, unless it is kept, or its bytes are going."""
        blob = state.get(Blob, self.job_id, self.blob_key)
        if blob is not None and blob.staged_s is not None and blob.deleting_s is None:
            state.put(msgspec.structs.replace(blob, staged_s=moment.at_s))


class ForgetBlob(Op, frozen=True, tag="forget-blob"):
    """A blob's bytes are gone, in every store: so is its row."""

    job_id: str
    blob_key: str

    def touches(self) -> Iterable[Key]:
        """Name the blob and its job."""
        return [(Blob, (self.job_id, self.blob_key)), (BlobJob, (self.job_id,))]

    def spans(self) -> Iterable[Span]:
        """Name the references to the blob."""
        return [(Reference, (self.job_id, self.blob_key))]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Remove a blob that was marked, with what still refers to it: that can only be an ended job's."""
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
    """A final job has left nothing, and its folder was looked at again: so is its row gone.

    Attributes:
        final_for_s: It must have been final for so long at least.
    """

    RESULT: ClassVar = bool

    job_id: str
    final_for_s: float

    def touches(self) -> Iterable[Key]:
        """Name the job."""
        return [(BlobJob, (self.job_id,))]

    def fold(self, state: State, moment: Moment) -> bool:
        """Remove the row of an ended job that has no blob left; returns whether it is gone."""
        job = state.get(BlobJob, self.job_id)
        if job is None:
            return True
        if job.final_s is None or job.final_s + self.final_for_s > moment.at_s:
            return False
        if state.has(Blob, job_id=self.job_id):
            return False
        state.delete(job)
        return True
