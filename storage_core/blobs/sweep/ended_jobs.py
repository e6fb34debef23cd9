"""Decide which listed blobs belong to an ended job, safely even if the deleting process was suspended.

A job id may be reused once its end is forgotten. A process suspended while it deletes the job's folders may
resume when they belong to a new job of the same id. So nothing is deleted by its folder: listed blobs are
checked against one later snapshot of the journal, and deleted by their keys, which are unique.

    the job has not ended                    keep all: it is a new job
    the journal knows the blob               delete: it is the ended job's
    its set is a server's own, open, and     keep: its put may be recorded once the end is forgotten;
      younger than the end                     otherwise its writer or the listing of orphans deletes it
    it was put under any other set           delete: an end is not forgotten before such a set is closed
"""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.storage_core.blobs.keys import BlobKey, upload_set_of
from lockgate.storage_core.blobs.registry.blob_rows import BlobJob
from lockgate.storage_core.blobs.registry.queries import PAGE, known_blobs, upload_sets
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stores.protocol import in_pages


def deletable(journal: Journal, job_id: str, listed: Sequence[BlobKey]) -> list[BlobKey]:
    """Return which of an ended job's blobs to delete, of those that a finished listing has found.

    Raises:
        LockgateError: The journal did not answer.
    """
    chosen: list[BlobKey] = []
    for page in in_pages(listed, PAGE):
        with journal.reading() as reading:
            chosen += _choose(reading, job_id, page)
    return chosen


def _choose(reading: Reading, job_id: str, listed: Sequence[BlobKey]) -> list[BlobKey]:
    job = reading.get(BlobJob, job_id)
    if job is None or job.final_s is None:
        return []
    young = {row.upload_set for row in upload_sets(reading) if not row.job_id and row.began_s > job.final_s}
    unsure = [key for key in listed if upload_set_of(key) in young]
    known = known_blobs(reading, [(job_id, key) for key in unsure]) if unsure else set()
    kept = {key for key in unsure if (job_id, key) not in known}
    return [key for key in listed if key not in kept]
