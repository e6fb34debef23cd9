"""The added files of a plan: check what pending sets name, and store it in shards under their digests.

They do not depend on the turn, so this is done before it.
Source: commit protocol, steps 1 and 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from posixpath import commonpath
from typing import Final

from lockgate.storage_core.commit.decide.task_selection import Chosen, sets_at_once
from lockgate.storage_core.commit.destination.conflict_mode import EVERYWHERE, Scope, partition_of
from lockgate.storage_core.commit.records.codec import MAX_RECORD_BYTES, decode, digest
from lockgate.storage_core.commit.records.job_folder import JobFolder
from lockgate.storage_core.commit.records.job_record import JobRecord, ScopeName
from lockgate.storage_core.commit.records.layout import is_hidden
from lockgate.storage_core.commit.records.pending_set import PendingFile, PendingSet
from lockgate.storage_core.commit.records.plan_records import AdditionShard
from lockgate.storage_core.commit.records.shards import (
    SHARD_ENTRIES,
    ShardRef,
    read_shard,
    shard_ref,
    write_shard,
)
from lockgate.storage_core.commit.uploads.own_uploads import OwnUploads
from lockgate.storage_core.commit.uploads.upload_completion import is_open
from lockgate.storage_core.concurrency import in_order, in_parallel
from lockgate.storage_core.errors import InvalidInputError, MalformedRecordError, UploadGoneError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.ids import check_id, with_short_id
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import UploadInfo
from lockgate.storage_core.stores.file_tree import FileTree
from lockgate.storage_core.stores.protocol import PendingUpload, check_key, check_parts, in_pages

KeptFiles = dict[str, tuple[PendingFile, ...]]
"""Added files in memory, by the digest of their shard."""

RANGES: Final = 4
"""Number of key ranges in which the open uploads of a large job are listed at the same time: the pages of one
listing can only be read in a row."""

RANGED_FILES: Final = 2_000
"""A job of fewer files has one range: its listing has two pages."""

KEPT_SHARDS: Final = 4
"""Shards of added files that a plan keeps in memory, so that most jobs read none twice."""


@dataclass
class Additions:
    """Added files of a plan: keys and uploads as short digests, of which a million fit in memory.

    Attributes:
        keys: Digests of the keys.
        uploads: Digests of the uploads.
        partitions: Partitions of the keys.
        refs: Stored shards, in order.
        kept: The first files, by shard.
        sample: Keys of some files, for `ranges`.
        greatest: The greatest key.
    """

    keys: set[bytes] = field(default_factory=set)
    uploads: set[bytes] = field(default_factory=set)
    partitions: set[str] = field(default_factory=set)
    refs: tuple[ShardRef, ...] = ()
    kept: KeptFiles = field(default_factory=dict)
    sample: list[str] = field(default_factory=list)
    greatest: str = ""

    def add(self, file: PendingFile, where: str) -> None:
        """Add a file that the pending set with the key `where` names.

        Raises:
            InvalidInputError: Another one has the same key.
        """
        key = _short(file.key)
        if key in self.keys:
            raise InvalidInputError(
                f"two tasks write {file.key}, the second one in {where}; nothing was published; give them "
                "different names"
            )
        if _is_sampled(key):
            self.sample.append(file.key)
        self.greatest = max(self.greatest, file.key)
        self.keys.add(key)
        self.partitions.add(partition_of(file.key))
        self.uploads.add(_upload(file.key, file.upload.upload_id))

    def writes(self, key: str) -> bool:
        """Return whether the plan adds a file with this key."""
        return _short(key) in self.keys

    @property
    def folder(self) -> str:
        """Prefix of the keys: empty, or the partition or its parent that has them all, with a `/`."""
        common = commonpath(self.partitions)
        return f"{common}/" if common else ""

    def ranges(self, count: int) -> list[tuple[str, str]]:
        """Return so many ranges of keys with about as many files each, or one for a small job.

        Each is a pair: its keys are greater than the first one, which may be empty, up to the second one.
        """
        size = len(self.sample) // count if len(self.keys) >= RANGED_FILES else 0
        bounds = sorted(self.sample)[size::size][: count - 1] if size else []
        return list(pairwise(["", *bounds, self.greatest]))

    def scope_of(self, name: ScopeName) -> Scope:
        """Return what the conflict mode applies to."""
        return EVERYWHERE if name == "destination" else Scope(frozenset(self.partitions))

    def files(self, folder: JobFolder) -> Iterator[PendingFile]:
        """Yield all files, with few shards in memory at a time."""
        return read_additions(folder, self.refs, self.kept)


def store_additions(folder: JobFolder, job: JobRecord, chosen: list[Chosen], settings: Settings) -> Additions:
    """Check the files of the chosen pending sets, and store them.

    Raises:
        InvalidInputError: Two tasks write the same file.
        MalformedRecordError: A pending set is not valid.
    """
    found = Additions()
    with step("plan"):
        found.refs = tuple(_stored(folder, job, chosen, found, settings))
    return found


def check_uploads(folder: JobFolder, planned: Additions, settings: Settings) -> None:
    """Check that all uploads are open: with listings, then one by one those that were not listed.

    A closed one may be visible already (`file-v2`).
    """
    closed = set(planned.uploads)
    if not closed:
        return

    def is_own(info: UploadInfo) -> bool:
        return _upload(info.key, info.upload_id) in planned.uploads

    def read_range(keys: tuple[str, str]) -> None:
        after, until = keys
        for info in OwnUploads(folder.store, is_own, planned.folder, expected, after=after, until=until):
            closed.discard(_upload(info.key, info.upload_id))
            if not closed:
                return

    # A file tree is walked as a whole for each listing.
    at_once = 1 if isinstance(folder.store, FileTree) else min(RANGES, settings.near_calls)
    ranges = planned.ranges(at_once)
    expected = len(closed) // len(ranges)
    for _ in in_parallel(read_range, ranges, at_once):
        pass
    if not closed:
        return
    uploads = (file.upload for file in planned.files(folder))
    suspects = (upload for upload in uploads if _upload(upload.key, upload.upload_id) in closed)

    def is_there(upload: PendingUpload) -> bool:
        return is_open(folder.store, upload) or folder.store.holds(upload)

    gone = sum(
        not found for found in in_parallel(is_there, suspects, settings.near_calls, settings.far_calls)
    )
    if gone:
        raise UploadGoneError(
            f"job {folder.job_id} at {folder.store.url}: {gone} of its {len(planned.uploads)} pending "
            "uploads are gone (a lifecycle rule or another tool aborted them); nothing was published; "
            "run the job again"
        )


def read_additions(folder: JobFolder, refs: Iterable[ShardRef], kept: KeptFiles) -> Iterator[PendingFile]:
    """Yield the files of shards, and keep the first shards."""
    for ref in refs:
        files = kept.get(ref.digest)
        if files is None:
            files = read_shard(folder.store, AdditionShard, partial(shard_key, folder), ref.digest).files
            _keep(kept, ref.digest, files)
        yield from files


def _keep(kept: KeptFiles, name: str, files: tuple[PendingFile, ...]) -> None:
    if len(kept) < KEPT_SHARDS:
        kept[name] = files  # a digest has one possible content


def shard_key(folder: JobFolder, name: str) -> str:
    """Return the key of a shard of a plan."""
    return folder.key(f"plan/shards/{check_id('shard digest', name)}.json")


def _check_pending_file(file: PendingFile, job: JobRecord, where: str) -> None:
    """Refuse a hidden key, one of another job or outside the destination, and sizes that do not add up."""
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


def _stored(
    folder: JobFolder, job: JobRecord, chosen: list[Chosen], planned: Additions, settings: Settings
) -> Iterator[ShardRef]:
    def read(task: Chosen) -> tuple[str, PendingSet]:
        key = folder.pending_set_key(task.task_id, task.attempt_id)
        if task.record is not None:
            return key, task.record
        data = folder.store.get(key, length=MAX_RECORD_BYTES + 1)
        if digest(data) != task.digest:
            raise MalformedRecordError(f"{key}: it changed after it was chosen")
        return key, decode(PendingSet, data, key)

    def files() -> Iterator[PendingFile]:
        for key, found in in_order(read, chosen, sets_at_once(settings)):
            for file in found.files:
                _check_pending_file(file, job, key)
                planned.add(file, key)
                yield file

    for batch in in_pages(files(), SHARD_ENTRIES):
        name = write_shard(folder.store, partial(shard_key, folder), AdditionShard(files=batch))
        _keep(planned.kept, name, batch)
        yield shard_ref(name, (f.upload.size for f in batch), (f.rows for f in batch))


def _is_sampled(key_digest: bytes) -> bool:
    """Choose about one of 64 files. Each n-th file could be the first of each task, all in one partition."""
    return key_digest[0] < 4


def _short(text: str) -> bytes:
    # A key from a listing may have bytes that are not UTF-8.
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _upload(key: str, upload_id: str) -> bytes:
    return _short(f"{key}\n{upload_id}")
