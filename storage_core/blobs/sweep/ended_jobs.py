"""What goes with a job that has ended, however long whoever deletes it was stopped in between.

A job's id may be used again when its end is forgotten. Who was stopped amid deleting its folders wakes to
those of another job, under the same names. So nothing goes because of where it lies: what a listing has shown
is held against the journal after it, in one snapshot, and goes by its own name, which no other blob ever has.

    the job has not ended                    nothing goes: it is another job by now
    the journal knows the blob               it goes: it is the ended job's
    its set is a server's own, open, and     it stays: its put may be recorded once the end is forgotten;
      younger than the end                     else whoever puts it deletes it, or the listing of orphans
    it was put under any other set           it goes: an end is not forgotten before such a set is closed
"""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.storage_core.blobs.keys import BlobKey, upload_set_of
from lockgate.storage_core.blobs.registry.queries import PAGE, known_blobs, upload_sets
from lockgate.storage_core.blobs.registry.rows import BlobJob
from lockgate.storage_core.journal import Journal
from lockgate.storage_core.journal.read.snapshot_read import Reading
from lockgate.storage_core.stores.pagination import in_pages


def deletable(journal: Journal, job_id: str, listed: Sequence[BlobKey]) -> list[BlobKey]:
    """Return those of a job's listed blobs that go with it, for it has ended.

    Args:
        journal: Knows whether it has.
        job_id: Of the job.
        listed: Their listing is over: what came later may be another job's.

    Raises:
        LockgateError: The journal did not tell.
    """
    going: list[BlobKey] = []
    for page in in_pages(iter(listed), PAGE):
        with journal.reading() as reading:
            going += _going(reading, job_id, page)
    return going


def _going(reading: Reading, job_id: str, listed: Sequence[BlobKey]) -> list[BlobKey]:
    job = reading.get(BlobJob, job_id)
    if job is None or job.final_s is None:
        return []
    young = {one.upload_set for one in upload_sets(reading) if not one.job_id and one.began_s > job.final_s}
    unsure = [key for key in listed if upload_set_of(key) in young]
    known = known_blobs(reading, [(job_id, key) for key in unsure]) if unsure else set()
    kept = {key for key in unsure if (job_id, key) not in known}
    return [key for key in listed if key not in kept]
