"""What becomes of data that the destination, or a partition, already has: `fail`, `append`, `replace`.

Source: commit protocol, step 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.destination.nested import DestinationsBelow
from lockgate.storage_core.commit.destination.scope import EVERYWHERE, Reach
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job import JobRecord, JobSpec, RemovedFile, ShortIdClaim
from lockgate.storage_core.commit.records.job_folder import JobFolder, find
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError, MalformedRecordError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId, JobName, ShortId, job_id, short_id_in
from lockgate.storage_core.stores import ObjectInfo, Store


@dataclass
class Owners:
    """Leads from a key to the job that wrote it, by the short id in its name."""

    store: Store
    _jobs: dict[ShortId, JobId | None] = field(default_factory=dict)
    _phases: dict[JobId, JobPhase | None] = field(default_factory=dict)

    def owner(self, key: str) -> JobId | None:
        """Return the job whose short id the key carries, None if it carries none that is known here."""
        short = short_id_in(key)
        if short is None:
            return None
        if short not in self._jobs:
            self._jobs[short] = owner_of(self.store, short)
        return self._jobs[short]

    def phase(self, job: JobId) -> JobPhase | None:
        """Return a job's phase as it was when first asked for; None where its records cannot be read."""
        if job not in self._phases:
            try:
                self._phases[job] = JobFolder(self.store, job).phase()
            except MalformedRecordError:
                self._phases[job] = None
        return self._phases[job]

    def is_unpublished(self, key: str) -> bool:
        """Tell whether a key belongs to a job that manifest readers do not see."""
        owner = self.owner(key)
        return owner is not None and self.phase(owner) not in {JobPhase.PUBLISHED, JobPhase.COMMITTED, None}


def owner_of(store: Store, short: ShortId) -> JobId | None:
    """Return the job whose short id this is, None if nobody claimed it here."""
    claimed = find(store, ShortIdClaim, layout.short_id_claim(short))
    return None if claimed is None else claimed.job_id


def visible_files(
    store: Store, prefixes: Sequence[str] = ("",), is_ours: Callable[[str], bool] = lambda _: False
) -> Iterator[ObjectInfo]:
    """Yield a destination's data files that a listing reader sees, or those of some folders in it.

    What lies in a destination below is that one's data.

    Args:
        store: Of the destination.
        prefixes: Of the folders.
        is_ours: Asked of a key in a destination below: whether it is this one's all the same.
    """
    below = DestinationsBelow(store)
    for prefix in prefixes:
        for page in below.pages(prefix):
            for info in page:
                if layout.is_hidden(info.key):
                    continue
                if below.holding(info.key) is None or is_ours(info.key):
                    yield info


def earlier_generations(name: JobName, generation: int, spec: JobSpec) -> frozenset[JobId]:
    """Return the ids of the generations before one, if its rerun is to take their place."""
    if spec.rerun != "replace":
        return frozenset()
    return frozenset(job_id(name, earlier) for earlier in range(1, generation))


def refuse_if_occupied(
    store: Store, manifest: Manifest, earlier: frozenset[JobId], reach: Reach = EVERYWHERE
) -> None:
    """Mode `fail`: refuse a destination, or partitions, that have data of others.

    Raises:
        ConflictError: It has; nothing was changed.
    """
    owners = Owners(store)
    live = (
        file.key for file in manifest.files.values() if reach.covers(file.key) and file.job_id not in earlier
    )
    unmanaged = (
        info.key
        for info in visible_files(store, reach.prefixes())
        if reach.covers(info.key)
        and info.key not in manifest.files
        and owners.owner(info.key) not in earlier
        and not owners.is_unpublished(info.key)
    )
    for source in (live, unmanaged):
        for key in source:
            raise ConflictError(
                f"{store.url} has data ({key}) and the mode is fail; nothing was changed; "
                "use mode append or replace, or another destination"
            )


def removals(
    store: Store,
    job: JobRecord,
    manifest: Manifest,
    is_written: Callable[[str], bool],
    reach: Reach = EVERYWHERE,
) -> Iterator[RemovedFile]:
    """Yield what the job's commit takes away, as it stands now.

    Args:
        store: Of the destination.
        job: In `replace`, all data that the mode reaches goes; else only what earlier generations of the job
            left, wherever it lies.
        manifest: The live files, folded within the turn.
        is_written: Whether the plan writes this key; such a key is never taken away.
        reach: What the mode looks at.
    """
    earlier = earlier_generations(job.name, job.generation, job.spec)
    if job.spec.mode != "replace" and not any(f.job_id in earlier for f in manifest.files.values()):
        return
    gone = {
        key: file
        for key, file in manifest.files.items()
        if (job.spec.mode == "replace" and reach.covers(key)) or file.job_id in earlier
    }
    owners = Owners(store)

    def is_ours(key: str) -> bool:
        # It was written before somebody made its folder a destination: it goes with the rest.
        return key in gone and owners.owner(key) == gone[key].job_id

    for info in visible_files(store, reach.prefixes(gone), is_ours):
        live = gone.pop(info.key, None)
        if is_written(info.key):
            continue
        owner = owners.owner(info.key)
        if live is not None:
            yield _removed(info, managed=owner == live.job_id)
        elif job.spec.mode == "replace" and owner is None and reach.covers(info.key):
            # What a job wrote and is not live is not ours to take: it is not published yet, or the job
            # that replaced it retains it.
            _refuse_if_undeletable(store, info.key)
            yield _removed(info, managed=False)
    for file in gone.values():
        # Live in the log but not in the listing: somebody took it away. The log still has to forget it.
        if not is_written(file.key):
            yield RemovedFile(
                key=file.key, size=file.size, version="", modified_s=0.0, token=file.token, managed=True
            )


def _refuse_if_undeletable(store: Store, key: str) -> None:
    if not store.capabilities.conditional_create and not store.capabilities.conditional_delete:
        raise ConflictError(
            f"{store.url}/{key} is no job's file, and this store cannot delete just the version that was "
            "seen; nothing was changed; take such files away by hand, or replace another destination"
        )


def _removed(info: ObjectInfo, *, managed: bool) -> RemovedFile:
    return RemovedFile(
        key=info.key,
        size=info.size,
        version=info.version,
        modified_s=info.modified_s,
        token=info.token,
        managed=managed,
    )


def refuse_if_overwriting(store: Store, job: JobRecord, key: str) -> None:
    """With `unique_filenames=False`: refuse a key at which a foreign object stands, unless that is wanted.

    Raises:
        ConflictError: One stands there; nothing was changed.
    """
    if job.spec.allow_irreversible:
        return
    try:
        store.head(key)
    except ObjectNotFoundError:
        return
    raise ConflictError(
        f"{store.url}/{key} stands already and the job's file names are not unique; nothing was changed; "
        "use unique_filenames=True, or allow_irreversible=True to overwrite it for good"
    )
