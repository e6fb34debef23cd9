"""Records of a job's identity: what it was asked to do, who drives it, and what its store can do.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from lockgate.storage_core import ids
from lockgate.storage_core.commit.records.artefacts import JobArtefacts
from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.ids import JobName, ShortId, Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Capabilities

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

ScopeName = Literal["destination", "partitions"]
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
    scope: ScopeName = "destination"
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
