"""Mode `revert`: a commit makes exactly the files of an earlier turn live, and adds those that are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.destination.named_files import as_read
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.log_records import LiveFile
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store


def removed_by_revert(
    store: Store,
    job: JobRecord,
    live: Manifest,
    wanted: Manifest | None,
    *,
    again: Iterable[LiveFile | msgspec.UnsetType],
    settings: Settings,
) -> Iterator[RemovedFile]:
    """Return the files that a revert removes.

    Args:
        store: Store of the destination.
        job: Record of the job.
        live: Live files, read within the turn.
        wanted: What is to be live; None in a process that has not read it.
        again: The earlier files that the job's files are.
        settings: Settings.

    Raises:
        ConflictError: Another job has changed which of the wanted files are live, or this process does not
            know the files.
    """
    url = f"job {job.job_id} at {store.url}"
    if wanted is None:
        raise ConflictError(
            f"{url}: only the process that began a revert knows what it makes live; nothing was published, "
            "and no file is lost; run the revert again"
        )
    there = {file.identity: key for key, file in live.files.items()}
    missing = {file.identity for file in wanted.files.values()} - there.keys()
    if missing != {file.identity for file in again if file is not msgspec.UNSET}:
        raise ConflictError(
            f"{url}: another job has removed files of turn {wanted.turn}, or made them live again, since the "
            "revert began; nothing was published, and no file is lost; run the revert again"
        )
    kept = {there.get(file.identity) for file in wanted.files.values()}
    return _removed(store, live, live.files.keys() - kept, settings)


def _removed(store: Store, live: Manifest, keys: set[str], settings: Settings) -> Iterator[RemovedFile]:
    found = as_read(store, live, keys, settings) if keys else {}
    for key in sorted(keys):
        gone = live.files[key]  # deleted by hand, and the log must drop it
        yield found.get(key) or RemovedFile(
            key=key, size=gone.size, version="", modified_s=0.0, token=gone.token, managed=True
        )
