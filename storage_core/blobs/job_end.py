"""Delete an ended job's blobs at once, without waiting for the next sweep."""

from __future__ import annotations

import logging
from typing import Final

from lockgate.storage_core.blobs.registry.rows import BlobJob
from lockgate.storage_core.blobs.server_or_client import open_blobs
from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import LockgateError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings

LOG: Final = logging.getLogger("lockgate.blobs")


def delete_ended(job_id: str, settings: Settings, *, clock: Clock | None = None) -> bool:
    """Delete the blobs of a job if the journal says that it has ended; return whether they are gone.

    A failure is only logged: the next sweep deletes them.

    Args:
        job_id: Id of the job in the blob stores.
        settings: Settings that name the journal and the blob server.
        clock: Clock for tests.
    """
    try:
        with step("blob-finish"):
            return _delete_ended(job_id, settings, clock)
    except LockgateError as error:
        LOG.warning("%s; the next sweep deletes them", error)
        return False


def _delete_ended(job_id: str, settings: Settings, clock: Clock | None) -> bool:
    journal = configured_journal(settings, clock)
    if journal is None:
        return False
    with journal.reading() as reading:
        job = reading.get(BlobJob, job_id)
    if job is None or job.final_s is None:
        return False
    with open_blobs(settings, clock=clock) as blobs:
        blobs.finish(job_id)
    return True
