"""A destination whose jobs are set up with artefacts: one journal for both, and a blob server beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockgate.storage_core.blobs.blob_protocol import ArtefactFile, Artefacts
from lockgate.storage_core.blobs.file_transfer import files_below, upload
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.open_blobs import open_server
from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Guarantee, Reference, UploadSet
from lockgate.storage_core.blobs.reports import BlobSweepReport
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from tests.support.blobs.server import INTERVAL_S
from tests.support.commit.destination import World

LIBRARY = b"RATE = 0.2\n"


def with_blobs(world: World) -> World:
    """The same destination with a journal, and an HA store for blobs beside it."""
    journalled = world.with_journal()
    return World(
        world.root,
        world.url,
        world.clock,
        {**journalled.options, "blob_store_url": str(world.root / "ha")},
    )


def server(world: World) -> BlobServer:
    """Open a blob server; the caller closes it."""
    return open_server(world.settings, clock=world.clock)


def uploaded(
    world: World,
    files: Mapping[str, bytes] | None = None,
    *,
    job_id: str = "etl-upload",
    guarantee: Guarantee = "ha",
) -> dict[str, Any]:
    """Upload files for a job; returns their handle."""
    folder = world.root / "sources"
    folder.mkdir(exist_ok=True)
    given = {"rates.py": LIBRARY} if files is None else files
    for name, data in given.items():
        (folder / name).write_bytes(data)
    with server(world) as blobs:
        done = upload(blobs, files_below(folder / name for name in given), job_id=job_id, guarantee=guarantee)
    return Artefacts(
        job_id=job_id, blobs=tuple(ArtefactFile(blob_key=one.blob_key, name=one.name) for one in done)
    ).handle()


def blob_job(world: World, job_id: str = "etl-upload") -> BlobJob | None:
    with world.journal.reading() as reading:
        return reading.get(BlobJob, job_id)


def is_ended(world: World, job_id: str = "etl-upload") -> bool:
    found = blob_job(world, job_id)
    return found is not None and found.final_s is not None


def owners(world: World, handle: Mapping[str, Any]) -> list[list[str]]:
    """Return the owners of each blob."""
    with world.journal.reading() as reading:
        return [
            [one.owner for one in reading.where(Reference, {"job_id": handle["job_id"], "blob_key": key})]
            for key in handle["blob_keys"]
        ]


def sweep(world: World) -> BlobSweepReport:
    with server(world) as blobs:
        return blobs.sweep(dry_run=False, orphans=True)


def sweep_all(world: World) -> None:
    """Sweep until everything unreferenced is deleted: three times, one interval apart."""
    for _ in range(3):
        sweep(world)
        world.clock.sleep(INTERVAL_S)


def bytes_of(world: World) -> list[str]:
    """Return the files of blobs in both stores."""
    places = (world.root / "home/blobs", world.root / "ha")
    found = [path for place in places for path in place.rglob("*") if path.is_file()]
    return sorted(path.name for path in found if _is_of_a_blob(path))


def rows_of(world: World) -> list[str]:
    """Return the journal's rows of blobs."""
    with world.journal.reading() as reading:
        kinds = (Blob, Reference, UploadSet, BlobJob)
        return [str(row) for kind in kinds for row in reading.where(kind, {})]


def check_live(world: World) -> int:
    """Read all referenced blobs of jobs that have not ended; return their number."""
    with world.journal.reading() as reading:
        ended = {job.job_id for job in reading.where(BlobJob, {}) if job.final_s is not None}
        kept = {(one.job_id, one.blob_key) for one in reading.where(Reference, {}) if one.job_id not in ended}
    with server(world) as blobs:
        for job_id, blob_key in kept:
            assert blobs.get(job_id, BlobKey(blob_key))
    return len(kept)


def _is_of_a_blob(path: Path) -> bool:
    return not path.name.startswith(".") and path.stat().st_size > 0
