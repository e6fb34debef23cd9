"""Read and write `_SUCCESS`: a summary of the last published job, for tools that expect this file.

It is not a manifest: the destination log lists the live files. An empty one, such as Spark's, is ignored.
Source: commit protocol, step 9; the S3A committers' `SuccessData`.
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from lockgate.storage_core import VERSION
from lockgate.storage_core.commit.decide.plan import Plan
from lockgate.storage_core.commit.publish.commit_context import CommitContext
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.codec import Record, encode
from lockgate.storage_core.commit.records.create_if_absent import create, find, retry_while_busy
from lockgate.storage_core.commit.records.job_record import Count, Mode
from lockgate.storage_core.commit.records.log_records import Outcome, Receipt
from lockgate.storage_core.commit.records.pending_set import PendingFile
from lockgate.storage_core.commit.records.plan_records import Decision
from lockgate.storage_core.commit.records.shards import SHARD_ENTRIES
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    MalformedRecordError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from lockgate.storage_core.ids import JobId
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.instrumented import InstrumentedStore

WRITE_TRIES: Final = 5
MAX_LISTED: Final = SHARD_ENTRIES
"""Limit of the files, and of the shards of the full list, in `_SUCCESS`, to keep it small."""


HADOOP_NAME: Final = "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1"
"""Format name without which Hadoop's `SuccessData.load` and `ManifestSuccessData.load` refuse the file."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file in the listing of `_SUCCESS`."""

    key: str
    size: Count
    rows: Count | None


class SuccessSummary(Record, frozen=True, tag="success"):
    r"""Content of `_SUCCESS`.

    Attributes:
        name: Name of the format that Hadoop reads.
        hostname: Machine that finished the job.
        date: Time of the publication, in UTC; `timestamp` is the same in milliseconds since the epoch.
        started_s: Time of the set-up.
        committed_s: Time of the publication.
        rows: Rows of all files; None if those of a file are unknown.
        size: Bytes of all files.
        filenames: The first 1,000 files.
        listing: The same files, with bytes and rows.
        omitted: Number of files that are not listed.
        listing_digest: SHA-256 over `<key>\t<size>\n` of all files, in the order of the plan.
        log: Key of the outcome in the destination log, which names every shard of the full list.
        shards: Keys of the first 1,000 of these shards, each with up to 1,000 files.
        metrics: Counts of files, bytes, parts and requests, by name.
        diagnostics: Facts about how the job was run, for people.
    """

    name: str
    job_id: JobId
    turn: int
    committer: str
    mode: Mode
    description: str
    hostname: str
    date: str
    timestamp_ms: int = msgspec.field(name="timestamp")
    started_s: float
    committed_s: float
    duration_s: float
    files: Count
    rows: Count | None
    size: Count
    plan: str
    filenames: tuple[str, ...]
    listing: tuple[FileEntry, ...]
    omitted: Count
    listing_digest: str
    log: str
    shards: tuple[str, ...]
    metrics: dict[str, int]
    diagnostics: dict[str, str]


@dataclass
class PublishedFiles:
    """Collects a job's published files: the first ones, and a digest of all."""

    decision: Decision
    outcome: Outcome
    receipt: Receipt
    plan: Plan
    entries: list[FileEntry] = field(default_factory=list)
    parts: int = 0

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, file: PendingFile) -> None:
        """Add one file; the files come in the order of the plan."""
        self._digest.update(f"{file.key}\t{file.upload.size}\n".encode())
        self.parts += len(file.upload.parts)
        if len(self.entries) < MAX_LISTED:
            self.entries.append(FileEntry(key=file.key, size=file.upload.size, rows=file.rows))

    @property
    def listing_digest(self) -> str:
        """SHA-256 over the files added so far."""
        return self._digest.hexdigest()


def find_success(store: Store) -> SuccessSummary | None:
    """Return the content of `_SUCCESS`; None if it is absent or from another tool."""
    try:
        return find(store, SuccessSummary, layout.SUCCESS)
    except MalformedRecordError:
        return None


@dataclass(frozen=True)
class EarlierSuccess:
    """`_SUCCESS` as it was before the turn's outcome, which this process created.

    No later turn could be claimed before that, so no summary of this turn or a later one had this version.

    Attributes:
        version: Version of `_SUCCESS`; None if there was none.
    """

    version: str | None


def earlier_success(store: Store) -> EarlierSuccess | None:
    """Look at `_SUCCESS`; None if its version does not help, because the store cannot replace by version."""
    version = _version(store)
    return EarlierSuccess(version) if version is None or store.capabilities.conditional_put else None


def write_success(
    context: CommitContext, published: PublishedFiles, earlier: EarlierSuccess | None = None
) -> None:
    """Write `_SUCCESS`, unless the current one is of this turn or a later one.

    If the store can replace by version, a process that was paused here cannot overwrite a newer summary.

    Args:
        context: Context of the job.
        published: Files of the job.
        earlier: A file that may be replaced without a look at its content, if it still has this version.

    Raises:
        OutcomeUnknownError: It is not known whether it was written; try again.
    """
    data = encode(_summary(context, published))
    for _ in range(WRITE_TRIES):
        current_version = _version(context.store) if earlier is None else earlier.version
        if current_version is not None and earlier is None:
            summary = find_success(context.store)
            if summary is not None and summary.turn >= published.receipt.turn:
                return
        earlier = None
        try:
            if current_version is None:
                create(context.store, layout.SUCCESS, data)
            elif context.store.capabilities.conditional_put:
                retry_while_busy().call(context.store.put, layout.SUCCESS, data, if_version=current_version)
            else:
                context.store.put(layout.SUCCESS, data)
        except (AlreadyExistsError, PreconditionFailedError, OutcomeUnknownError):
            continue  # read the current file again
        return
    raise OutcomeUnknownError(
        f"{context.store.url}/{layout.SUCCESS}: it is not known whether it was written, after {WRITE_TRIES} "
        "tries; the job is published; run recovery to finish its markers"
    )


def _version(store: Store) -> str | None:
    try:
        return store.head(layout.SUCCESS).version
    except ObjectNotFoundError:
        return None


def _summary(context: CommitContext, published: PublishedFiles) -> SuccessSummary:
    receipt, entries = published.receipt, tuple(published.entries)
    return SuccessSummary(
        name=HADOOP_NAME,
        job_id=context.job.job_id,
        turn=receipt.turn,
        committer=receipt.committer,
        mode=receipt.mode,
        description=context.job.description,
        hostname=socket.gethostname(),
        date=datetime.fromtimestamp(receipt.published_s, tz=UTC).isoformat(),
        timestamp_ms=int(receipt.published_s * 1000),
        started_s=context.job.created_s,
        committed_s=receipt.published_s,
        duration_s=receipt.published_s - context.job.created_s,
        files=receipt.files,
        rows=receipt.rows,
        size=receipt.size,
        plan=receipt.plan,
        filenames=tuple(entry.key for entry in entries),
        listing=entries,
        omitted=receipt.files - len(entries),
        listing_digest=published.listing_digest,
        log=layout.turn_outcome(receipt.turn),
        shards=tuple(layout.log_shard(ref.digest) for ref in published.outcome.added[:MAX_LISTED]),
        metrics=_metrics(context, published),
        diagnostics={
            "created_by": context.job.created_by,
            "decided_by": published.decision.decided_by,
            "job_attempt": published.plan.head.job_attempt,
            "lockgate_version": VERSION,
        },
    )


def _metrics(context: CommitContext, published: PublishedFiles) -> dict[str, int]:
    """Return counts of the job's files and parts, and of the requests of this process by verb."""
    # A copy, because other threads may use the same store.
    requests = dict(context.store.requests) if isinstance(context.store, InstrumentedStore) else {}
    return {
        **{f"files_{result}": count for result, count in context.report.counts.items()},
        "bytes_replaced": sum(ref.size for ref in published.plan.head.removals),
        "parts": published.parts,
        **{f"requests_{verb}": count for verb, count in sorted(requests.items())},
    }
