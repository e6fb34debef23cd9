"""Records of a job's identity: its specification, its artefacts, its lease, and its store's capabilities.

Source: commit protocol, "What lies where".
"""

from __future__ import annotations

import getpass
import os
import socket
from typing import Annotated, Any, Final, Literal

import msgspec

from lockgate.storage_core import ids
from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobName, ShortId, Token
from lockgate.storage_core.stamp import Stamp
from lockgate.storage_core.stores import Capabilities

BlobJobId = Annotated[str, msgspec.Meta(pattern=r"\A(?!no_job\Z)[A-Za-z0-9][A-Za-z0-9._=+-]{0,119}\Z")]
"""Id of a job in the blob stores; not `no_job`, whose blobs are shared and must survive the job's end."""

BlobKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}-[0-9a-f]{32}\Z")]


class JobArtefacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Blobs of one job; the lists are of equal length.

    Attributes:
        job_id: Id of the job in the blob stores.
        blob_keys: Keys of the blobs.
        names: Names of the files that were uploaded.
        uses: Purpose of each blob; empty if all are libraries.
    """

    job_id: BlobJobId
    blob_keys: tuple[BlobKey, ...]
    names: tuple[str, ...]
    uses: tuple[Literal["library", "message", "log", "other"], ...] = ()

    def __post_init__(self) -> None:
        """Refuse lists of different lengths."""
        if len(self.names) != len(self.blob_keys) or len(self.uses) not in {0, len(self.names)}:
            raise ValueError("blob_keys, names and uses are not of equal length")

    def handle(self) -> dict[str, Any]:
        """Return the artefacts as a small JSON object."""
        handle: dict[str, Any] = msgspec.to_builtins(self)
        return handle


def artefacts_of(handle: object) -> JobArtefacts:
    """Return the artefacts that a handle names.

    Raises:
        InvalidInputError: The value is not a handle.
    """
    try:
        return convert(handle, JobArtefacts)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"artefacts={str(handle)[:120]!r} are not valid ({error}); nothing was set up; pass what an "
            "upload returned: the output of BlobUploadOperator"
        ) from None


Mode = Literal["fail", "append", "replace", "compact", "revert"]
OnLapse = Literal["abort", "resume"]
Rerun = Literal["replace", "append", "once"]
Count = Annotated[int, msgspec.Meta(ge=0)]
TurnNumber = Annotated[int, msgspec.Meta(ge=1)]

# Ids become segments of keys and paths, so an id that could leave its folder is refused when it is decoded.
_SEGMENT: Final = r"\A[A-Za-z0-9][A-Za-z0-9._=+-]{0,119}"
JobId = Annotated[ids.JobId, msgspec.Meta(pattern=rf"{_SEGMENT}-g[1-9][0-9]{{0,8}}\Z")]
JobAttemptId = Annotated[ids.JobAttemptId, msgspec.Meta(pattern=rf"{_SEGMENT}\Z")]
TaskId = Annotated[ids.TaskId, msgspec.Meta(pattern=rf"{_SEGMENT}\Z")]
AttemptId = Annotated[ids.AttemptId, msgspec.Meta(pattern=rf"{_SEGMENT}\Z")]

ScopeName = Literal["destination", "partitions"]
"""Data that a mode applies to: the whole destination, or the partitions that receive data."""

MODES: Final[tuple[Mode, ...]] = ("fail", "append", "replace", "compact", "revert")


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column of a data set: its name, and its type as the writer spells it.

    Attributes:
        dropped: Only earlier data have it; its type still counts if the column comes back.
    """

    name: str
    type: str
    dropped: bool = False


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Specification of a job; a retry must give the same one.

    Attributes:
        committer: Name of the committer.
        mode: Treatment of data that the destination already has. `compact` removes exactly the files that the
            driver has read, whose rows the job has written again; `revert` leaves exactly the files of an
            earlier turn.
        scope: Data that the mode applies to.
        columns: Columns of the data, if the writer knows them.
        evolve_schema: Allow the job to add and drop columns of the destination, and to widen their types.
        staging: Directory or URL with staged files.
        audit: Require a passing audit verdict before the commit.
        on_lapse: What recovery does with an undecided job whose driver is gone.
        rerun: What a later generation does with earlier files of this name; `once`: there is none.
        unique_filenames: Put the job's short id into file names, so that a completion never overwrites.
        allow_irreversible: With `unique_filenames=False`, allow overwriting an object of another writer.
        allow_unsafe: Allow a committer whose files are visible before the job commits.
        artefacts: Blobs that the job's tasks need.
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
    artefacts: JobArtefacts | None = None


class JobOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Airflow task that set a job up.

    Attributes:
        map_index: Index of a mapped task; -1 otherwise.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


class JobRecord(Record, frozen=True, tag="job"):
    """`job.json`: the permanent identity of a job, created if absent at set-up.

    Attributes:
        journal: Journal of the job's leases, `<identity>@<url>#<name>`; empty for heartbeats in its folder.
        origin: The Airflow task that set it up; absent without Airflow, so that older programs read it.
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
    origin: JobOrigin | msgspec.UnsetType = msgspec.UNSET


class StoreRecord(Record, frozen=True, tag="store"):
    """`store.json`: capabilities of the store, as probed at the destination's first set-up.

    Attributes:
        arbiter: Identity of the journal that decides who creates a name; "" if the store can.
        arbiter_url: URL of that journal without its password, for people.
    """

    capabilities: Capabilities
    probed_s: float
    arbiter: str = ""
    arbiter_url: str = ""


class ShortIdClaim(Record, frozen=True, tag="short-id"):
    """`ids/<short id>`: the job that owns a short id, so that a listed upload leads to its owner."""

    job_id: JobId


class LeaseRecord(Record, frozen=True, tag="lease"):
    """`lease.json`: the job's current driver and job attempt; a heartbeat, not a lock.

    Attributes:
        state: `journal` if the journal has the current lease; the record is then the first driver's.
    """

    job_id: JobId
    job_attempt: JobAttemptId
    holder: Token
    stamp: Stamp
    state: Literal["live", "suspended", "journal"]
    renewed_s: float
    deadline_s: float


def process_name() -> str:
    """Return `user@host:pid` of this process, for readers of a record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"
