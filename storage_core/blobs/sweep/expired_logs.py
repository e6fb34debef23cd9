"""Delete log blobs as soon as their last reference is dropped, without staging: a log can be produced again.

Source: Flink BLOB storage, "Log Files".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lockgate.storage_core.blobs.keys import check_blob_key
from lockgate.storage_core.blobs.registry.removals import ForgetBlob, MarkDeleting
from lockgate.storage_core.blobs.registry.rows import Blob
from lockgate.storage_core.blobs.storage.holdings import Holdings
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import step


def delete_logs(holdings: Holdings, blobs: Sequence[tuple[str, str]]) -> None:
    """Delete the unreferenced logs among blobs, given by job and key; on an error the sweep does it."""
    with suppress(LockgateError), step("blob-log"):  # a refusal in safe mode, too: they are staged
        for blob in _idle_logs(holdings, blobs):
            _delete(holdings, blob)


def _idle_logs(holdings: Holdings, blobs: Sequence[tuple[str, str]]) -> list[Blob]:
    with holdings.journal.reading() as reading:
        found = reading.find(Blob, blobs)
    return [
        blob
        for blob in found
        if blob.use == "log" and blob.guarantee == "recreatable" and blob.staged_s is not None
    ]


def _delete(holdings: Holdings, blob: Blob) -> None:
    job_id, blob_key = blob.job_id, check_blob_key(blob.blob_key)
    mark = MarkDeleting(job_id=job_id, blob_key=blob_key, staged_for_s=0.0)
    if holdings.journal.apply(mark).result:
        holdings.local.delete(job_id, blob_key)
        holdings.local.drop_empty(job_id)
        holdings.journal.apply(ForgetBlob(job_id=job_id, blob_key=blob_key))
