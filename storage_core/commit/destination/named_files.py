"""Mode `compact`: a commit removes exactly the files that its job has read, and adds the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from lockgate.storage_core.commit.destination.conflict_mode import (
    Scope,
    earlier_generations,
    partition_of,
    removed_file,
)
from lockgate.storage_core.commit.destination.log import DestinationLog, Manifest
from lockgate.storage_core.commit.destination.visible_files import Owners, visible_files
from lockgate.storage_core.commit.records.generations import recorded_end
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.plan_records import RemovedFile
from lockgate.storage_core.concurrency import in_parallel
from lockgate.storage_core.errors import ConflictError
from lockgate.storage_core.ids import job_id, short_id_in
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import ObjectInfo, Store

MANY_PARTITIONS: Final = 200


def as_read(
    store: Store, manifest: Manifest, keys: Iterable[str], settings: Settings
) -> dict[str, RemovedFile]:
    """Return live files as they are now, for `Job.commit(replaces=…)`. Read their bytes only after this.

    Args:
        store: Store of the destination.
        manifest: Live files.
        keys: Keys of live files; those that the store does not have are left out.
        settings: Settings.
    """
    wanted, owners = set(keys), Owners(store)
    of_each_job = {short_id_in(key): key for key in wanted}
    for _ in in_parallel(owners.owner, of_each_job.values(), settings.near_calls, settings.far_calls):
        pass  # the owners are known from here on
    found = {}
    for info in _listed(store, wanted):
        file = removed_file(info, managed=owners.owner(info.key) is not None)
        found[info.key] = msgspec.structs.replace(file, token=manifest.files[info.key].token)
    return found


def named_removals(
    store: Store, job: JobRecord, manifest: Manifest, named: Mapping[str, RemovedFile] | None
) -> Iterator[RemovedFile]:
    """Yield the files that a compaction removes, if none of them has changed since it was read.

    Args:
        store: Store of the destination.
        job: Record of the job.
        manifest: Live files, read within the turn.
        named: What `as_read` returned; None in a process that has not read the files.

    Raises:
        ConflictError: A file is gone or has changed, or this process does not know the files.
    """
    url = f"job {job.job_id} at {store.url}"
    if named is None:
        raise ConflictError(
            f"{url}: mode compact removes the files that its driver has read, and only that process knows "
            "them; nothing was published, and no file is lost; run the compaction again"
        )
    live = manifest.files
    left = {key for key, file in named.items() if key in live and live[key].token == file.token}
    changed = named.keys() - left
    for info in _listed(store, left) if not changed else ():
        if (info.version, info.size) == (named[info.key].version, named[info.key].size):
            left.discard(info.key)
            yield named[info.key]
    changed = changed or left
    if changed:
        raise ConflictError(
            f"{url}: {len(changed)} of the {len(named)} files that this compaction has read are gone or have "
            f"changed, such as {min(changed)}: another job has replaced them; nothing was published, and no "
            "file is lost; run the compaction again"
        )


def refuse_if_compacted(
    log: DestinationLog, job: JobRecord, manifest: Manifest, is_replaced: Callable[[str], bool]
) -> None:
    """Refuse a recomputation of a job whose files a compaction has merged with those of other jobs.

    The rows of the earlier generation could not be removed any more: they would be there twice. A job with
    the name of a compaction is refused too: it would remove rows of other jobs.

    Args:
        log: Log of the destination.
        job: Record of the later generation.
        manifest: Live files, read within the turn.
        is_replaced: Return whether the mode removes all data where a key lies.

    Raises:
        ConflictError: There is such a file; nothing was published.
    """
    has_earlier = bool(earlier_generations(job.name, job.generation, job.spec))
    live = {file.identity for file in manifest.files.values()} if has_earlier else set()
    for generation in reversed(range(1, job.generation if has_earlier else 1)):
        end = recorded_end(log.store, job_id(job.name, generation))
        receipt = None if end is None or end.ended is None else end.ended.receipt
        published = None if receipt is None else log.outcome(receipt.turn)
        if end is None or published is None:
            continue
        written, _ = log.changes(published)
        if published.receipt is not None and published.receipt.mode == "compact":
            left = {key for key, file in written.items() if file.identity in live and not is_replaced(key)}
            if left:
                raise ConflictError(
                    f"job {job.job_id} at {log.store.url}: generation {generation} was a compaction: this "
                    f"job would remove its files, such as {min(left)}, with rows of other jobs; nothing was "
                    "published; run it under another name"
                )
            continue
        gone = {key for key, file in written.items() if file.identity not in live and not is_replaced(key)}
        for outcome in log.outcomes(published.turn) if gone else ():
            if outcome.receipt is None or outcome.receipt.mode != "compact":
                continue
            merged = gone & log.changes(outcome)[1]
            if merged:
                raise ConflictError(
                    f"job {job.job_id} at {log.store.url}: compaction {outcome.job_id} has merged "
                    f"{len(merged)} files of generation {generation}, such as {min(merged)}, with files of "
                    "other jobs, so that their rows would be there twice; nothing was published; replace the "
                    "partitions as a whole (mode replace), or keep the rows of both (rerun append)"
                )
        if end.job is None or end.job.spec.rerun == "replace":
            return  # it has replaced those before it


def _listed(store: Store, keys: set[str]) -> Iterator[ObjectInfo]:
    partitions = frozenset(map(partition_of, keys))
    # Of many partitions, one listing of all files has fewer pages.
    prefixes = Scope(partitions).prefixes() if len(partitions) < MANY_PARTITIONS else [""]
    return (info for info in visible_files(store, prefixes, keys.__contains__) if info.key in keys)
