"""Blobs of one upload set, put, taken by a job and given up, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockgate import open_job
from lockgate.storage_core.blobs.keys import UploadSetId
from lockgate.storage_core.blobs.registry.upload_sets import AbandonUpload, PutBlob, upload_resource
from lockgate.storage_core.blobs.server.open_upload_sets import UploadSets
from lockgate.storage_core.blobs.sweep.lapsed_sets import in_steps
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.journal import Journal, Mutation
from lockgate.storage_core.journal.entries.lease_entries import Lease, Seen
from lockgate.storage_core.settings import Settings

UPLOAD = "up-1"
GROUP = 500


def keys_of(number: int) -> list[str]:
    """Return keys of blobs."""
    return [f"{one:064x}-{one:032x}" for one in range(number)]


def sets_of(journal: Journal) -> UploadSets:
    """Return a journal's upload sets, which are never renewed."""
    return UploadSets(journal, SystemClock(), own_max_age_s=60)


def put(journal: Journal, upload_set: UploadSetId, keys: Sequence[str], job_id: str = UPLOAD) -> None:
    """Record blobs in a set, a group in each transaction."""
    ops = [
        PutBlob(
            job_id=job_id, blob_key=key, upload_set=upload_set, guarantee="recreatable", use="other",
            name=key[-2:], size_bytes=1, joins=True,
        )
        for key in keys
    ]  # fmt: skip
    for first in range(0, len(ops), GROUP):
        journal.write([Mutation(op=op) for op in ops[first : first + GROUP]])


def upload(journal: Journal, keys: Sequence[str]) -> int:
    """Upload blobs in one set; return the number that its completion gives."""
    sets = sets_of(journal)
    opened, _ = sets.take("uploader", UPLOAD)
    put(journal, opened, keys)
    return sets.complete(opened)


def set_up(tmp_path: Path, settings: Settings, keys: Sequence[str]) -> None:
    """Set up a job with uploaded blobs, at the destination `lake`."""
    handle = {
        "job_id": UPLOAD,
        "blob_keys": list(keys),
        "names": [key[-2:] for key in keys],
        "uses": ["other"] * len(keys),
    }
    open_job(str(tmp_path / "lake"), "sales", artefacts=handle, settings=settings)


def steps_to_abandon(
    journal: Journal, upload_set: UploadSetId, *, lapsed: bool = False
) -> Sequence[AbandonUpload]:
    """Return the entries with which a sweep gives up a set whose lease is gone or was seen to lapse."""
    with journal.reading() as reading:
        lease = reading.get(Lease, upload_resource(upload_set))
        seen = Seen.of(lease) if lapsed and lease is not None else None
        return in_steps(reading, AbandonUpload(upload_set=upload_set, seen=seen))
