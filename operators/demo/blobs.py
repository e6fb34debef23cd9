"""Where the demo's library is: in the blob store while its job runs, nowhere when it has ended."""

from __future__ import annotations

from lockgate.operators.demo.failed import DemoFailedError
from lockgate.storage_core.blobs import Artefacts, Blobs, open_blobs
from lockgate.storage_core.errors import ObjectNotFoundError
from lockgate.storage_core.settings import Settings


def check_there(settings: Settings, artefacts: Artefacts) -> str:
    """Read the library of a job that is not at its end; returns a word about it.

    Raises:
        DemoFailedError: It is not the job's.
        LockgateError: It cannot be had.
    """
    with open_blobs(settings) as blobs:
        for file in artefacts.blobs:
            if not blobs.references(job_id=artefacts.job_id, blob_key=file.blob_key, owner="job"):
                raise DemoFailedError(f"blob {file.blob_key} is not its job's, which has not ended")
            blobs.get(artefacts.job_id, file.blob_key)
    return f"its library is still there, {told_key(artefacts)}"


def check_ended(settings: Settings, artefacts: Artefacts) -> str:
    """See that a job that has ended has left no bytes of its library; returns a word about it.

    Raises:
        DemoFailedError: It has.
    """
    with open_blobs(settings) as blobs:
        _refuse_left(blobs, artefacts)
    return f"the job has ended, and with it is gone {told_key(artefacts)}"


def check_swept(settings: Settings, artefacts: Artefacts) -> str:
    """See that after a sweep nothing at all of an ended job is left; returns a word about it.

    Raises:
        DemoFailedError: It is.
    """
    with open_blobs(settings) as blobs:
        _refuse_left(blobs, artefacts)
        rows = [*blobs.page(artefacts.job_id), *blobs.references(job_id=artefacts.job_id)]
    if rows:
        raise DemoFailedError(f"after the sweep the journal still knows {rows}")
    return f"the second run's library is gone, too: no bytes, no row, no reference of {told_key(artefacts)}"


def told_key(artefacts: Artefacts) -> str:
    """Tell the first blob in a few characters: of what its bytes hash to, and of what is its own."""
    blob_key = artefacts.blobs[0].blob_key
    return f"blob {blob_key[:8]}…{blob_key[-8:]}"


def _refuse_left(blobs: Blobs, artefacts: Artefacts) -> None:
    for file in artefacts.blobs:
        try:
            blobs.get(artefacts.job_id, file.blob_key)
        except ObjectNotFoundError:
            continue
        raise DemoFailedError(f"job {artefacts.job_id} has ended, and its library {file.name} is left")
