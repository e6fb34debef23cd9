"""Mode `revert`: a commit makes the files of an earlier turn live again, and writes none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lockgate.storage_core.commit.destination.as_of import gone_files
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.commit.destination.named_files import as_read
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.settings import Settings


class RevertedFiles(NamedTuple):
    """What a revert changes: files of earlier jobs that are live again, and files that are live no more."""

    restored: Sequence[LiveFile]
    removed: Iterator[RemovedFile]


def reverted_files(
    log: DestinationLog,
    job: JobRecord,
    live: Manifest,
    wanted: Manifest | None,
    settings: Settings,
) -> RevertedFiles:
    """Return what must change so that the files of an earlier turn are live, all of which are kept.

    Args:
        log: Log of the destination.
        job: Record of the job.
        live: Live files, read within the turn.
        wanted: What is to be live; None in a process that has not read it.
        settings: Settings.

    Raises:
        ConflictError: A file is gone, or this process does not know the files.
    """
    url = f"job {job.job_id} at {log.store.url}"
    if wanted is None:
        raise ConflictError(
            f"{url}: only the process that began a revert knows what it makes live; nothing was published, "
            "and no file is lost; run the revert again"
        )
    restored = [file for key, file in sorted(wanted.files.items()) if live.files.get(key) != file]
    gone = gone_files(log, wanted, live.files)
    if gone:
        raise ConflictError(
            f"{url}: {len(gone)} of {len(wanted.files)} files of turn {wanted.turn} are gone, such as "
            f"{min(gone)}; nothing was published, and no file is lost; revert to another turn"
        )
    return RevertedFiles(restored, _removed(log, live, wanted, settings))


def _removed(
    log: DestinationLog, live: Manifest, wanted: Manifest, settings: Settings
) -> Iterator[RemovedFile]:
    keys = live.files.keys() - wanted.files.keys()
    found = as_read(log.store, live, keys, settings) if keys else {}
    for key in sorted(keys):
        gone = live.files[key]  # deleted by hand, and the log must drop it
        yield found.get(key) or RemovedFile(
            key=key, size=gone.size, version="", modified_s=0.0, token=gone.token, managed=True
        )
