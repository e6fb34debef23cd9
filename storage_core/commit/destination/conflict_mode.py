"""Conflict modes `fail`, `append` and `replace`, and their scope: all data of a destination, or partitions.

The mode `compact` is in `named_files`.

Source: commit protocol, step 4; S3A committers, "The Partitioned Staging Committer".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lockgate.storage_core.commit.destination.log import Manifest
from lockgate.storage_core.commit.destination.visible_files import Owners, visible_files
from lockgate.storage_core.commit.records.job_record import JobRecord, JobSpec
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.errors import ConflictError, ObjectNotFoundError
from lockgate.storage_core.ids import JobId, JobName, job_id
from lockgate.storage_core.printable import printable
from lockgate.storage_core.stores import ObjectInfo, Store


def partition_of(key: str) -> str:
    """Return the folder that is a key's partition, "" for the root.

    The partition ends with the last folder of the form `column=value`. Without one it is the file's folder:
    `day=1/hour=2/x/a` → `day=1/hour=2`, `2026/05/a` → `2026/05`.
    """
    folders = key.split("/")[:-1]
    last = max((depth for depth, folder in enumerate(folders, start=1) if "=" in folder), default=None)
    return "/".join(folders[:last])


@dataclass(frozen=True)
class Scope:
    """The keys that a mode applies to.

    Attributes:
        partitions: Folders that receive data; None for the whole destination.
    """

    partitions: frozenset[str] | None = None

    def covers(self, key: str) -> bool:
        """Return whether the mode applies to this key."""
        return self.partitions is None or partition_of(key) in self.partitions

    def prefixes(self, others: Iterable[str] = ()) -> list[str]:
        """Return the prefixes to list: those of the scope and of the partitions of other keys.

        No prefix contains another, so nothing is listed twice.
        """
        if self.partitions is None:
            return [""]
        wanted = {f"{folder}/" if folder else "" for folder in {*self.partitions, *map(partition_of, others)}}
        return [prefix for prefix in sorted(wanted) if not _is_within(prefix, wanted)]


EVERYWHERE = Scope()


def _is_within(prefix: str, others: set[str]) -> bool:
    if not prefix:
        return False
    folders = prefix.rstrip("/").split("/")
    above = ("/".join(folders[:depth]) for depth in range(len(folders)))
    return any((f"{folder}/" if folder else "") in others for folder in above)


def earlier_generations(name: JobName, generation: int, spec: JobSpec) -> frozenset[JobId]:
    """Return the ids of the generations that this one replaces; empty unless `rerun="replace"`.

    A compaction replaces only the files that it has read: those that it wrote before have rows of other jobs.
    """
    if spec.rerun != "replace" or spec.mode == "compact":
        return frozenset()
    return frozenset(job_id(name, earlier) for earlier in range(1, generation))


def refuse_if_occupied(
    store: Store, manifest: Manifest, earlier: frozenset[JobId], scope: Scope = EVERYWHERE
) -> None:
    """Refuse a destination, or partitions, with data of other jobs, for mode `fail`.

    Raises:
        ConflictError: There is such data; nothing was changed.
    """
    owners = Owners(store)
    live = (
        file.key for file in manifest.files.values() if scope.covers(file.key) and file.job_id not in earlier
    )
    unmanaged = (
        info.key
        for info in visible_files(store, scope.prefixes())
        if scope.covers(info.key)
        and info.key not in manifest.files
        and owners.owner(info.key) not in earlier
        and not owners.is_unpublished(info.key)
    )
    for source in (live, unmanaged):
        for key in source:
            raise ConflictError(
                f"{store.url} has data ({printable(key)}) and the mode is fail; nothing was changed; "
                "use mode append or replace, or another destination"
            )


def removals(
    store: Store,
    job: JobRecord,
    manifest: Manifest,
    is_written: Callable[[str], bool],
    scope: Scope = EVERYWHERE,
    *,
    refuse_if_live_elsewhere: Callable[[str], None] = lambda _: None,
) -> Iterator[RemovedFile]:
    """Yield the files that the job's commit removes, as they are now.

    Args:
        store: Store of the destination.
        job: Record of the job. Mode `replace` removes all data in scope; other modes remove only files of
            earlier generations, in and out of scope.
        manifest: Live files, read within the turn.
        is_written: Return whether the plan writes a key; such a key is never removed.
        scope: Scope of the mode.
        refuse_if_live_elsewhere: Raises if another destination names a file that no job here wrote.
    """
    earlier = earlier_generations(job.name, job.generation, job.spec)
    if job.spec.mode != "replace" and not any(f.job_id in earlier for f in manifest.files.values()):
        return
    gone = {
        key: file
        for key, file in manifest.files.items()
        if (job.spec.mode == "replace" and scope.covers(key)) or file.job_id in earlier
    }
    owners = Owners(store)

    def is_ours(key: str) -> bool:
        # The file was written before its folder became a destination: remove it with the rest.
        return key in gone and owners.owner(key) is not None

    for info in visible_files(store, scope.prefixes(gone), is_ours):
        live = gone.pop(info.key, None)
        if is_written(info.key):
            continue
        owner = owners.owner(info.key)
        if live is not None:
            yield removed_file(info, managed=owner is not None)
        elif job.spec.mode == "replace" and owner is None and scope.covers(info.key):
            # A file that has an owner but is not live is kept: unpublished, or retained after replacement.
            refuse_if_live_elsewhere(info.key)
            _refuse_if_undeletable(store, info.key)
            yield removed_file(info, managed=False)
    for file in gone.values():
        # Live in the log but not in the listing: it was deleted by hand, and the log must drop it.
        if not is_written(file.key):
            yield RemovedFile(
                key=file.key, size=file.size, version="", modified_s=0.0, token=file.token, managed=True
            )


def _refuse_if_undeletable(store: Store, key: str) -> None:
    if not store.capabilities.conditional_create and not store.capabilities.conditional_delete:
        raise ConflictError(
            f"{store.url}/{printable(key)} was not written by a job, and this store cannot delete only the "
            "version that was seen; nothing was changed; remove such files by hand, or replace another "
            "destination"
        )


def removed_file(info: ObjectInfo, *, managed: bool) -> RemovedFile:
    """Return a listed file as a plan records what it removes."""
    name = info.key.encode("utf-8", "surrogateescape")
    is_utf8 = not any("\ud800" <= letter <= "\udfff" for letter in info.key)
    return RemovedFile(
        key=info.key if is_utf8 else printable(info.key),
        size=info.size,
        version=info.version,
        modified_s=info.modified_s,
        token=info.token,
        managed=managed,
        name=b"" if is_utf8 else name,
    )


def refuse_if_overwriting(store: Store, job: JobRecord, key: str) -> None:
    """Refuse to overwrite an object with `unique_filenames=False`, unless `allow_irreversible` is set.

    Raises:
        ConflictError: The key has an object; nothing was changed.
    """
    if job.spec.allow_irreversible:
        return
    try:
        store.head(key)
    except ObjectNotFoundError:
        return
    raise ConflictError(
        f"{store.url}/{key} exists and the job's file names are not unique; nothing was changed; "
        "use unique_filenames=True, or allow_irreversible=True to overwrite it permanently"
    )
