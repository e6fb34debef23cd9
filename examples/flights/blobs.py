"""Check the blobs of the demo's library: they exist while the job runs, and are deleted at its end."""

from __future__ import annotations

from examples.flights.steps import DemoFailedError
from lockgate.storage_core.blobs.blob_protocol import Artefacts, Blobs
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.settings import Settings


def check_there(settings: Settings, artefacts: Artefacts) -> str:
    """Read the library of a job that has not ended, and return a summary.

    Raises:
        DemoFailedError: The job has no reference to it.
        LockgateError: It cannot be read.
    """
    with open_blobs(settings) as blobs:
        for file in artefacts.blobs:
            if not blobs.references(job_id=artefacts.job_id, blob_key=file.blob_key, owner="job"):
                raise DemoFailedError(f"the job has not ended and has no reference to blob {file.blob_key}")
            blobs.get(artefacts.job_id, file.blob_key)
    return f"its library still exists, {blob_label(artefacts)}"


def check_ended(settings: Settings, artefacts: Artefacts) -> str:
    """Check that an ended job has left no bytes of its library, and return a summary.

    Raises:
        DemoFailedError: Bytes are left.
    """
    with open_blobs(settings) as blobs:
        _refuse_left(blobs, artefacts)
    return f"the job has ended, which deleted {blob_label(artefacts)}"


def check_swept(settings: Settings, artefacts: Artefacts) -> str:
    """Check that a sweep has left nothing of an ended job, and return a summary.

    Raises:
        DemoFailedError: Bytes or rows are left.
    """
    with open_blobs(settings) as blobs:
        _refuse_left(blobs, artefacts)
        rows = [*blobs.page(artefacts.job_id), *blobs.references(job_id=artefacts.job_id)]
    if rows:
        raise DemoFailedError(f"after the sweep the journal still has {rows}")
    return f"the second run's library is deleted, too: no bytes, row or reference of {blob_label(artefacts)}"


def blob_label(artefacts: Artefacts) -> str:
    """Return a short label of the first blob: the beginning of its digest and the end of its key."""
    blob_key = artefacts.blobs[0].blob_key
    return f"blob {blob_key[:8]}…{blob_key[-8:]}"


def _refuse_left(blobs: Blobs, artefacts: Artefacts) -> None:
    for file in artefacts.blobs:
        try:
            blobs.get(artefacts.job_id, file.blob_key)
        except ObjectNotFoundError:
            continue
        raise DemoFailedError(f"job {artefacts.job_id} has ended, but its library {file.name} still exists")
