"""Freeze and read a plan: the list of the files that a commit adds and removes, stored under its digest.

Source: commit protocol, steps 1 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lockgate.storage_core.commit.decide.additions import (
    KEPT_SHARDS,
    Additions,
    KeptFiles,
    read_additions,
    shard_key,
)
from lockgate.storage_core.commit.destination.conflict_mode import (
    earlier_generations,
    refuse_if_occupied,
    refuse_if_overwriting,
    removals,
)
from lockgate.storage_core.commit.destination.log import (
    DestinationLog,
    Manifest,
)
from lockgate.storage_core.commit.destination.named_files import (
    named_removals,
    refuse_if_compacted,
)
from lockgate.storage_core.commit.destination.overlap import FilesAbove, refuse_overlap
from lockgate.storage_core.commit.destination.path_conflicts import refuse_path_conflicts
from lockgate.storage_core.commit.destination.reverted_files import removed_by_revert
from lockgate.storage_core.commit.destination.schema_evolution import (
    columns_after,
    refuse_overtaken_columns,
)
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord
from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.commit.records.plan_records import PlanHead, RemovalShard, RemovedFile
from lockgate.storage_core.commit.records.shards import (
    SHARD_ENTRIES,
    read_shard,
    shard_ref,
    total_rows,
    write_shard,
)
from lockgate.storage_core.concurrency import Together
from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId, check_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores.protocol import in_pages


class Draft(NamedTuple):
    """What a plan has whatever its turn is.

    Attributes:
        job_attempt: Job attempt whose tasks the commit includes.
        chosen_digest: Digest of the chosen attempts.
        audit: Digest of the audit verdict for them, if there is one.
        additions: Their files.
        replaces: Files that a compaction has read, by key; None in a process that has not read them.
        restores: What is to be live after a revert; None in a process that has not read it.
    """

    job_attempt: JobAttemptId
    chosen_digest: str
    audit: str | None
    additions: Additions
    replaces: Mapping[str, RemovedFile] | None = None
    restores: Manifest | None = None


@dataclass(frozen=True)
class Plan:
    """A stored plan; its shards are read on demand, and the first ones are kept."""

    folder: JobFolder
    name: str
    head: PlanHead
    _kept: KeptFiles = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows(self) -> int | None:
        """Rows of all added files; None if the rows of one are unknown."""
        return total_rows(ref.rows for ref in self.head.additions)

    @property
    def size(self) -> int:
        """Bytes of all added files."""
        return sum(ref.size for ref in self.head.additions)

    @property
    def files(self) -> int:
        """Number of added files."""
        return sum(ref.files for ref in self.head.additions)

    @property
    def is_small(self) -> bool:
        """Whether all its added files are kept in memory once they were read."""
        return len(self.head.additions) <= KEPT_SHARDS

    def additions(self, shard: int) -> tuple[PendingFile, ...]:
        """Return one shard of the added files."""
        return tuple(read_additions(self.folder, [self.head.additions[shard]], self._kept))

    def all_additions(self) -> Iterator[PendingFile]:
        """Yield all added files, with few shards in memory at a time."""
        return read_additions(self.folder, self.head.additions, self._kept)

    def removals(self, shard: int) -> tuple[RemovedFile, ...]:
        """Read one shard of the removed files."""
        digest = self.head.removals[shard].digest
        return read_shard(self.folder.store, RemovalShard, partial(shard_key, self.folder), digest).files

    def all_removals(self) -> Iterator[RemovedFile]:
        """Yield all removed files, with one shard in memory at a time."""
        for shard in range(len(self.head.removals)):
            yield from self.removals(shard)


def read_plan(folder: JobFolder, name: str) -> Plan:
    """Read a plan by its digest.

    Raises:
        ObjectNotFoundError: The plan is gone: the job has ended and was cleaned up.
        MalformedRecordError: The content does not have this digest.
    """
    head = read_shard(folder.store, PlanHead, partial(_plan_key, folder), name)
    if head.job_id != folder.job_id:
        raise MalformedRecordError(f"{_plan_key(folder, name)}: field job_id is {head.job_id}")
    return Plan(folder, name, head)


def freeze(
    folder: JobFolder,
    job: JobRecord,
    draft: Draft,
    turn: int,
    *,
    manifest: Callable[[], Manifest],
    settings: Settings,
) -> PlanHead:
    """Plan a commit within its turn; the plan is still to be written.

    Args:
        folder: Folder of the job.
        job: Record of the job.
        draft: What the turn does not change.
        turn: Turn of the job.
        manifest: Returns the live files after the turn before it.
        settings: Settings.

    Raises:
        ConflictError: The destination has data that the mode forbids, or columns that do not fit; a path
            conflicts with a key; another destination above or below it has published or is publishing; a file
            that a compaction has read is gone; or a compaction has merged files that the job must remove.
    """
    additions = draft.additions
    with step("plan"), Together(settings.near_calls) as together:
        # Again, within the turn, because two destinations may have begun at once.
        check_others = partial(refuse_overlap, folder.store, settings, is_new=turn == 1)
        checked = together.start(check_others) if turn == 1 else None
        live = manifest()
        if checked is not None:
            checked.result()
        elif not live.files:
            check_others()
        refuse_overtaken_columns(job.spec, live.all_columns, folder.store.url)
        scope = additions.scope_of(job.spec.scope)
        if job.spec.mode == "fail":
            earlier = earlier_generations(job.name, job.generation, job.spec)
            refuse_if_occupied(folder.store, live, earlier, scope)
        if not job.spec.unique_filenames:
            for file in additions.files(folder):
                refuse_if_overwriting(folder.store, job, file.key)
        keys = (file.key for file in additions.files(folder))
        refuse_path_conflicts(folder.store, keys, additions.writes)
        log = DestinationLog(folder.store, settings.near_calls)
        refuse_if_compacted(log, job, live, lambda key: job.spec.mode == "replace" and scope.covers(key))
        if job.spec.mode == "revert":
            again = (file.again for file in additions.files(folder))
            replaced = removed_by_revert(
                folder.store, job, live, draft.restores, again=again, settings=settings
            )
        elif job.spec.mode == "compact":
            replaced = named_removals(folder.store, job, live, draft.replaces)
        else:
            above = FilesAbove(folder.store, settings)
            replaced = removals(
                folder.store, job, live, additions.writes, scope, refuse_if_live_elsewhere=above.refuse
            )
        removed = tuple(
            shard_ref(
                write_shard(folder.store, partial(shard_key, folder), RemovalShard(files=batch)),
                (f.size for f in batch),
                (live.files[f.key].rows if f.managed else None for f in batch),
            )
            for batch in in_pages(replaced, SHARD_ENTRIES)
        )
        return PlanHead(
            job_id=folder.job_id,
            job_attempt=draft.job_attempt,
            turn=turn,
            mode=job.spec.mode,
            chosen_digest=draft.chosen_digest,
            audit=draft.audit,
            additions=additions.refs,
            removals=removed,
            columns=columns_after(job.spec, live.all_columns),
        )


def write_plan(folder: JobFolder, head: PlanHead, draft: Draft) -> Plan:
    """Store a plan under its digest."""
    with step("plan"):
        name = write_shard(folder.store, partial(_plan_key, folder), head)
    return Plan(folder, name, head, draft.additions.kept)


def _plan_key(folder: JobFolder, name: str) -> str:
    return folder.key(f"plan/{check_id('plan digest', name)}/plan.json")
