"""The records of the commit protocol: everything that one process writes for another to read.

Each is one JSON object in the store; `layout.py` says where. Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from lockgate.storage_core import ids
from lockgate.storage_core.commit.records.artefacts import JobArtefacts
from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.ids import JobName, ShortId, Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Capabilities, PendingUpload

Mode = Literal["fail", "append", "replace"]
OnLapse = Literal["abort", "resume"]
Rerun = Literal["replace", "append", "once"]
Count = Annotated[int, msgspec.Meta(ge=0)]
Turn = Annotated[int, msgspec.Meta(ge=1)]

# Ids become segments of keys, and of paths on disk: one that could lead out is refused where it is read.
_SEGMENT: Final = r"\A[A-Za-z0-9][A-Za-z0-9._=+-]{0,119}"
JobId = Annotated[ids.JobId, msgspec.Meta(pattern=rf"{_SEGMENT}-g[1-9][0-9]{{0,8}}\Z")]
JobAttemptId = Annotated[ids.JobAttemptId, msgspec.Meta(pattern=rf"{_SEGMENT}\Z")]
TaskId = Annotated[ids.TaskId, msgspec.Meta(pattern=rf"{_SEGMENT}\Z")]
AttemptId = Annotated[ids.AttemptId, msgspec.Meta(pattern=rf"{_SEGMENT}\Z")]

Scope = Literal["destination", "partitions"]
"""What a mode looks at: all of the destination, or the partitions that receive data."""

MODES: Final[tuple[Mode, ...]] = ("fail", "append", "replace")


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of a data set: its name and its type as the writer spells it."""

    name: str
    type: str


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job was asked to do; a retry must ask the same.

    Attributes:
        committer: Where uncommitted data wait; by name.
        mode: What becomes of data that the destination already has.
        scope: What the mode looks at.
        columns: Of the data, where the writer knows them.
        evolve_schema: Let `append` bring columns that do not fit the destination's.
        staging: Directory or URL with staged files, for the staged front end.
        audit: A passing audit verdict is required before the commit.
        on_lapse: What recovery does with an undecided job whose driver is gone.
        rerun: What a later generation does with this name's earlier files; `once`: there is no later one.
        unique_filenames: File names carry the job's short id, so completing can never overwrite.
        allow_irreversible: With `unique_filenames=False`: overwriting a foreign object is wanted.
        allow_unsafe: A committer whose files are seen before the job commits is wanted.
        replaced_retention_s: Replaced files stay that long for readers of older log entries.
        artefacts: What its tasks need of the blob stores.
    """

    committer: str = "magic"
    mode: Mode = "append"
    scope: Scope = "destination"
    columns: tuple[Column, ...] | None = None
    evolve_schema: bool = False
    staging: str | None = None
    audit: bool = False
    on_lapse: OnLapse = "abort"
    rerun: Rerun = "replace"
    unique_filenames: bool = True
    allow_irreversible: bool = False
    allow_unsafe: bool = False
    replaced_retention_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    artefacts: JobArtefacts | None = None


class JobRecord(Record, frozen=True, tag="job"):
    """`job.json`: created if absent at set-up, the identity of a job for good.

    Attributes:
        journal: Where its leases are: `<identity>@<where>#<name>`; empty: heartbeats in its folder.
    """

    job_id: JobId
    name: JobName
    generation: Annotated[int, msgspec.Meta(ge=1)]
    short_id: ShortId
    spec: JobSpec
    token: Token
    created_s: float
    created_by: str
    description: str = ""
    journal: str = ""


class StoreRecord(Record, frozen=True, tag="store"):
    """`store.json`: what the store at this destination was seen to do, at the first set-up.

    Attributes:
        arbiter: Identity of the journal that decides what is created there once; "" where the store can.
        arbiter_url: Where that journal was, for people; without a password.
    """

    capabilities: Capabilities
    probed_s: float
    arbiter: str = ""
    arbiter_url: str = ""


class ShortIdClaim(Record, frozen=True, tag="short-id"):
    """`ids/<short id>`: whose short id it is, so that an upload found in a listing leads to its owner."""

    job_id: JobId


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a frozen staging listing: its path below the staging directory, and its bytes."""

    path: str
    size: Count


class ExpectedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task that a job attempt must commit.

    Attributes:
        input_digest: Equal for two job attempts only if the task's output would be.
        files: Of the staged front end: what to turn into pending uploads.
    """

    task_id: TaskId
    input_digest: str = ""
    files: tuple[StagedFile, ...] = ()


class ExpectedTasks(Record, frozen=True, tag="expected-tasks"):
    """`attempts/<job attempt>.json`: the frozen task list of one job attempt."""

    job_id: JobId
    job_attempt: JobAttemptId
    stamp: Stamp
    staging: str | None
    tasks: tuple[ExpectedTask, ...]


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a writer knows of one column of one file; values as text."""

    nulls: int | None = None
    minimum: str | None = None
    maximum: str | None = None


class PendingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file that is wholly written and that nobody can see.

    Attributes:
        path: As the writer named it, below the destination, without the short id.
        upload: How to make it visible.
        rows: None where the writer does not know.
    """

    path: str
    upload: PendingUpload
    rows: Count | None = None
    statistics: dict[str, ColumnStatistics] = {}

    @property
    def key(self) -> str:
        """Where it will be visible."""
        return self.upload.key


class PendingSet(Record, frozen=True, tag="pending-set"):
    """One attempt's immutable record of its pending files; creating it is the task commit."""

    job_id: JobId
    job_attempt: JobAttemptId
    task_id: TaskId
    attempt_id: AttemptId
    stamp: Stamp
    input_digest: str
    created_s: float
    files: tuple[PendingFile, ...]


class AbortedAttempt(Record, frozen=True, tag="aborted-attempt"):
    """`tasks/<task>/<attempt>.aborted`: this attempt is never chosen, whatever it still saves."""

    job_id: JobId
    task_id: TaskId
    attempt_id: AttemptId
    reason: str


class AuditVerdict(Record, frozen=True, tag="audit"):
    """`audits/<chosen digest>.json`: what an audit said of exactly these pending sets."""

    job_id: JobId
    chosen_digest: str
    passed: bool
    suite: str
    summary: dict[str, str | int | float | bool | None]
    decided_s: float


class ShardRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard of a plan or of an outcome: `<digest>.json` beside its head, and what it adds up to."""

    digest: str
    files: Count
    size: Count
    rows: Count | None


class RemovedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that a `replace` takes away, as it was found when the plan was made.

    Attributes:
        managed: It is live in the destination log: its name is unique and never written again.
        in_the_way: The job needs its name for a folder, or a folder of it for a name: it is moved aside
            between decision and completion.
    """

    key: str
    size: Count
    version: str
    modified_s: float
    token: Token | None
    managed: bool
    in_the_way: bool = False


class PlanHead(Record, frozen=True, tag="plan"):
    """`plan/<digest>/plan.json`: the frozen list of what the commit does; named by its own digest."""

    job_id: JobId
    job_attempt: JobAttemptId
    turn: Turn
    mode: Mode
    chosen_digest: str
    audit: str | None
    additions: tuple[ShardRef, ...]
    removals: tuple[ShardRef, ...]


class AdditionShard(Record, frozen=True, tag="plan-additions"):
    """Up to 1,000 pending files of a plan."""

    files: tuple[PendingFile, ...]


class RemovalShard(Record, frozen=True, tag="plan-removals"):
    """Up to 1,000 files that a plan takes away."""

    files: tuple[RemovedFile, ...]


class Decision(Record, frozen=True, tag="decision"):
    """`COMMIT_STARTED`: created if absent, once; from here on there is only forward."""

    job_id: JobId
    verdict: Literal["commit", "abort"]
    token: Token
    stamp: Stamp
    decided_s: float
    decided_by: str
    plan: str | None = None
    turn: Turn | None = None
    reason: str = ""


class TurnClaim(Record, frozen=True, tag="turn"):
    """`log/<turn>.turn`: whose turn it is to commit to the destination.

    Attributes:
        stamp: Of the lease under which it was claimed: a turn is waited for only while that lease lives.
    """

    job_id: JobId
    token: Token
    stamp: Stamp


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a published job did; the same however often it is asked for.

    Attributes:
        rows: None if any file's writer did not know its rows.
        size: Bytes.
    """

    job_id: JobId
    turn: Turn
    committer: str
    mode: Mode
    plan: str
    files: int
    rows: int | None
    size: int
    removed_files: int
    published_s: float


class LiveFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that manifest readers see, and the job that wrote it."""

    key: str
    size: Count
    rows: Count | None
    token: Token
    job_id: JobId


class LiveShard(Record, frozen=True, tag="live-files"):
    """Up to 1,000 live files of an outcome or a checkpoint."""

    files: tuple[LiveFile, ...]


class KeyShard(Record, frozen=True, tag="removed-keys"):
    """Up to 1,000 keys that an outcome removed."""

    keys: tuple[str, ...]


class Outcome(Record, frozen=True, tag="outcome"):
    """`log/<turn>.json`: how a turn ended, decided once.

    Attributes:
        added: Shards `shards/<digest>.json` of `LiveShard`; only of `published`.
        removed: Shards of `KeyShard`.
    """

    job_id: JobId
    turn: Turn
    verdict: Literal["published", "reverted", "passed"]
    decided_s: float
    added: tuple[ShardRef, ...] = ()
    removed: tuple[ShardRef, ...] = ()
    columns: tuple[Column, ...] | None = None
    receipt: Receipt | None = None
    reason: str = ""


class CheckpointHint(Record, frozen=True, tag="checkpoint-hint"):
    """`checkpoint.json`: a turn whose checkpoint stands; only a hint, so it may be old."""

    turn: Turn


class Checkpoint(Record, frozen=True, tag="checkpoint"):
    """`log/<turn>.checkpoint`: the fold of all outcomes up to a turn."""

    turn: Turn
    live: tuple[ShardRef, ...]
    columns: tuple[Column, ...] | None


class FileFate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one file of a job."""

    key: str
    fate: Literal["published", "lost", "reverted", "aborted", "removed", "kept", "retained", "unsettled"]
    detail: str = ""


class FateShard(Record, frozen=True, tag="fates"):
    """`report/<digest>.json`: 1,000 files of a long report."""

    fates: tuple[FileFate, ...]


class Report(Record, frozen=True, tag="report"):
    """`report.json`: every file's fate, also of failed jobs.

    Attributes:
        counts: How many files met each fate.
        shards: Digests of `FateShard`, for all but the last files.
        fates: The last files, or all of a short report.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    reason: str
    receipt: Receipt | None
    counts: dict[str, int]
    shards: tuple[str, ...]
    fates: tuple[FileFate, ...]


class Ended(Record, frozen=True, tag="ended"):
    """`COMMIT_SUCCESS` or `COMMIT_FAIL`: terminal.

    Attributes:
        retained_until_s: Until then the plan is kept. Of a committed job: so are replaced files. Of a
            reverted one: the next sweep after it looks once more. 0: there is nothing left to do.
    """

    job_id: JobId
    ended: Literal["committed", "failed"]
    ended_s: float
    reason: str = ""
    receipt: Receipt | None = None
    retained_until_s: float = 0.0


class LeaseRecord(Record, frozen=True, tag="lease"):
    """`lease.json`: who drives the job now, and in which job attempt; a heartbeat, not a lock.

    Attributes:
        state: `journal`: this is the first driver's, and how the lease stands now is in the journal.
    """

    job_id: JobId
    job_attempt: JobAttemptId
    holder: Token
    stamp: Stamp
    state: Literal["held", "parked", "journal"]
    renewed_s: float
    deadline_s: float


class SweepState(Record, frozen=True, tag="sweep"):
    """`sweep.json`: ownerless uploads and when a sweep first saw them, by key and upload id."""

    seen: dict[str, float]
