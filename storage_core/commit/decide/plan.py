"""Freeze and read a plan: the list of the files that a commit adds and removes, stored under its digest.

Source: commit protocol, steps 1 and 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from posixpath import commonpath

from lockgate.storage_core.commit.committers import get_committer
from lockgate.storage_core.commit.decide.task_selection import Chosen, chosen_digest, sets_at_once
from lockgate.storage_core.commit.destination.conflict_mode import (
    earlier_generations,
    refuse_if_occupied,
    refuse_if_overwriting,
    removals,
)
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.destination.overlap import FilesAbove, refuse_overlap
from lockgate.storage_core.commit.destination.path_conflicts import find_path_conflicts
from lockgate.storage_core.commit.destination.schema_evolution import (
    columns_after,
    refuse_overtaken_columns,
)
from lockgate.storage_core.commit.destination.scope import EVERYWHERE, Scope, partition_of
from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, decode, digest, encode
from lockgate.storage_core.commit.records.job import JobRecord, ScopeName
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.commit.records.pending_set import PendingFile, PendingSet
from lockgate.storage_core.commit.records.plan import (
    AdditionShard,
    PlanHead,
    RemovalShard,
    RemovedFile,
    ShardRef,
)
from lockgate.storage_core.commit.records.shards import (
    SHARD_ENTRIES,
    read_shard,
    shard_ref,
    total_rows,
    write_shard,
)
from lockgate.storage_core.commit.uploads.own_uploads import OwnUploads
from lockgate.storage_core.commit.uploads.upload_completion import is_open
from lockgate.storage_core.concurrency import in_order, in_parallel
from lockgate.storage_core.errors import (
    AuditFailedError,
    InvalidInputError,
    MalformedRecordError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import JobAttemptId, check_id, with_short_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import UploadInfo
from lockgate.storage_core.stores.pagination import in_pages
from lockgate.storage_core.stores.protocol import PendingUpload, check_key, check_parts


@dataclass(frozen=True)
class Plan:
    """A stored plan; its shards are read on demand."""

    folder: JobFolder
    name: str
    head: PlanHead

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

    def additions(self, shard: int) -> tuple[PendingFile, ...]:
        """Read one shard of the added files."""
        return tuple(_read_additions(self.folder, [self.head.additions[shard]]))

    def all_additions(self) -> Iterator[PendingFile]:
        """Yield all added files, with one shard in memory at a time."""
        return _read_additions(self.folder, self.head.additions)

    def removals(self, shard: int) -> tuple[RemovedFile, ...]:
        """Read one shard of the removed files."""
        digest = self.head.removals[shard].digest
        return read_shard(self.folder.store, RemovalShard, partial(_shard_key, self.folder), digest).files

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


@dataclass
class _PlannedFiles:
    """Keys and uploads of a plan as short digests, of which a million fit in memory, and its partitions."""

    keys: set[bytes] = field(default_factory=set)
    uploads: set[bytes] = field(default_factory=set)
    partitions: set[str] = field(default_factory=set)

    def add(self, file: PendingFile, where: str) -> None:
        key = _short(file.key)
        if key in self.keys:
            raise InvalidInputError(
                f"two tasks write {file.key}, the second one in {where}; nothing was published; give them "
                "different names"
            )
        self.keys.add(key)
        self.partitions.add(partition_of(file.key))
        self.uploads.add(_upload(file.key, file.upload.upload_id))

    def writes(self, key: str) -> bool:
        return _short(key) in self.keys

    @property
    def folder(self) -> str:
        """Prefix of the keys: empty, or the partition or its parent that has them all, with a `/`."""
        common = commonpath(self.partitions)
        return f"{common}/" if common else ""

    def scope_of(self, name: ScopeName) -> Scope:
        return EVERYWHERE if name == "destination" else Scope(frozenset(self.partitions))


def freeze(
    folder: JobFolder,
    job: JobRecord,
    job_attempt: JobAttemptId,
    chosen: list[Chosen],
    turn: int,
    *,
    settings: Settings,
) -> Plan:
    """Store the plan of a commit within its turn, under its digest.

    Raises:
        AuditFailedError: The job requires an audit, and these pending sets have none that passed.
        ConflictError: The destination has data that the mode forbids, or columns that do not fit; a path
            conflicts with a key; or another destination above or below it has published or is publishing.
        InvalidInputError: Two tasks write the same file.
        MalformedRecordError: A pending set is not valid.
        UploadGoneError: An upload no longer exists.
    """
    with step("plan"):
        audit = check_audit(folder, job, chosen)
        planned = _PlannedFiles()
        additions = tuple(_freeze_additions(folder, job, chosen, planned, settings))
        manifest = DestinationLog(folder.store).manifest()
        if not manifest.files:
            refuse_overlap(folder.store, settings)  # again, within the turn: two may have begun at once
        refuse_overtaken_columns(job.spec, manifest.all_columns, folder.store.url)
        scope = planned.scope_of(job.spec.scope)
        if job.spec.mode == "fail":
            earlier = earlier_generations(job.name, job.generation, job.spec)
            refuse_if_occupied(folder.store, manifest, earlier, scope)
        if not job.spec.unique_filenames:
            for file in _read_additions(folder, additions):
                refuse_if_overwriting(folder.store, job, file.key)
        conflicts = find_path_conflicts(
            folder.store, (file.key for file in _read_additions(folder, additions)), planned.writes
        )
        if job.spec.mode != "replace" or not get_committer(job.spec.committer).merges:
            conflicts.refuse_rest()
        above = FilesAbove(folder.store, settings)
        replaced = removals(
            folder.store, job, manifest, planned.writes, scope, refuse_if_live_elsewhere=above.refuse
        )
        removed = tuple(
            shard_ref(
                _write(folder, RemovalShard(files=batch)),
                (f.size for f in batch),
                (manifest.files[f.key].rows if f.managed else None for f in batch),
            )
            for batch in in_pages(map(conflicts.mark, replaced), SHARD_ENTRIES)
        )
        conflicts.refuse_rest()
        _preflight(folder, planned, additions, settings)
        head = PlanHead(
            job_id=folder.job_id,
            job_attempt=job_attempt,
            turn=turn,
            mode=job.spec.mode,
            chosen_digest=chosen_digest(chosen),
            audit=audit,
            additions=additions,
            removals=removed,
            columns=columns_after(job.spec, manifest.all_columns),
        )
        return read_plan(folder, write_shard(folder.store, partial(_plan_key, folder), head))


def check_audit(folder: JobFolder, job: JobRecord, chosen: list[Chosen]) -> str | None:
    """Return the digest of the audit verdict for the chosen attempts; None if there is none.

    Raises:
        AuditFailedError: The audit failed, or the job requires an audit of exactly these data.
    """
    audited = chosen_digest(chosen)
    verdict = folder.audit(audited)
    if verdict is None:
        if job.spec.audit:
            raise AuditFailedError(
                f"job {folder.job_id} requires an audit, and there is none of exactly these data; "
                "nothing was published; run the audit after the last task commit"
            )
        return None
    if not verdict.passed:
        raise AuditFailedError(
            f"job {folder.job_id}: the audit {verdict.suite!r} failed; nothing was published; "
            f"its verdict is {folder.store.url}/{folder.audit_key(audited)}"
        )
    return digest(encode(verdict))


def _check_pending_file(file: PendingFile, job: JobRecord, where: str) -> None:
    """Check the key and the parts of a pending file.

    Raises:
        MalformedRecordError: The key is hidden, of another job or outside the destination; a size is wrong.
    """
    try:
        check_key(file.path)
        check_key(file.key)
        ordered = check_parts(file.key, file.upload.parts)
    except InvalidInputError as error:
        raise MalformedRecordError(f"{where}: {error}") from None
    expected = with_short_id(file.path, job.short_id) if job.spec.unique_filenames else file.path
    if file.key != expected:
        raise MalformedRecordError(f"{where}: field key is {file.key!r}, but path makes it {expected!r}")
    if is_hidden(file.key):
        raise MalformedRecordError(f"{where}: field key {file.key!r} is a hidden name")
    if ordered != file.upload.parts:
        raise MalformedRecordError(f"{where}: field parts of {file.key!r} is not sorted by number")
    if sum(part.size for part in ordered) != file.upload.size or any(part.size < 0 for part in ordered):
        raise MalformedRecordError(f"{where}: field size of {file.key!r} is not the sum of its parts")


def _freeze_additions(
    folder: JobFolder, job: JobRecord, chosen: list[Chosen], planned: _PlannedFiles, settings: Settings
) -> Iterator[ShardRef]:
    def read(task: Chosen) -> tuple[str, str, bytes]:
        key = folder.pending_set_key(task.task_id, task.attempt_id)
        return key, task.digest, folder.store.get(key, length=MAX_RECORD_BYTES + 1)

    def files() -> Iterator[PendingFile]:
        for key, chosen_as, data in in_order(read, chosen, sets_at_once(settings)):
            if digest(data) != chosen_as:
                raise MalformedRecordError(f"{key}: it changed after it was chosen")
            for file in decode(PendingSet, data, key).files:
                _check_pending_file(file, job, key)
                planned.add(file, key)
                yield file

    for batch in in_pages(files(), SHARD_ENTRIES):
        name = _write(folder, AdditionShard(files=batch))
        yield shard_ref(name, (f.upload.size for f in batch), (f.rows for f in batch))


def _write(folder: JobFolder, shard: AdditionShard | RemovalShard) -> str:
    return write_shard(folder.store, partial(_shard_key, folder), shard)


def _read_additions(folder: JobFolder, refs: Iterable[ShardRef]) -> Iterator[PendingFile]:
    for ref in refs:
        yield from read_shard(folder.store, AdditionShard, partial(_shard_key, folder), ref.digest).files


def _shard_key(folder: JobFolder, name: str) -> str:
    return folder.key(f"plan/shards/{check_id('shard digest', name)}.json")


def _plan_key(folder: JobFolder, name: str) -> str:
    return folder.key(f"plan/{check_id('plan digest', name)}/plan.json")


def _preflight(
    folder: JobFolder, planned: _PlannedFiles, additions: Iterable[ShardRef], settings: Settings
) -> None:
    """Check that all uploads are open: with a listing, then one by one those that it lacks or that come late.

    A closed one may be visible already (`file-v2`).
    """
    closed = set(planned.uploads)
    if not closed:
        return

    def is_own(info: UploadInfo) -> bool:
        return _upload(info.key, info.upload_id) in planned.uploads

    for info in OwnUploads(folder.store, is_own, planned.folder, len(closed)):
        closed.discard(_upload(info.key, info.upload_id))
        if not closed:
            return
    uploads = (file.upload for file in _read_additions(folder, additions))
    suspects = (upload for upload in uploads if _upload(upload.key, upload.upload_id) in closed)

    def is_there(upload: PendingUpload) -> bool:
        return is_open(folder.store, upload) or folder.store.holds(upload)

    gone = sum(
        not found for found in in_parallel(is_there, suspects, settings.parallelism, settings.far_parallelism)
    )
    if gone:
        raise UploadGoneError(
            f"job {folder.job_id} at {folder.store.url}: {gone} of its {len(planned.uploads)} pending "
            "uploads are gone (a lifecycle rule or another tool aborted them); nothing was published; "
            "run the job again"
        )


def _short(text: str) -> bytes:
    # A key from a listing may have bytes that are not UTF-8.
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _upload(key: str, upload_id: str) -> bytes:
    return _short(f"{key}\n{upload_id}")
