"""The entries' kinds: one file a family, each with what it says and how it folds into the tables."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal.entries.claims import ClaimName, ReleaseName
from lockgate.storage_core.journal.entries.jobs import ForgetJob, RecordJob, RecordTask
from lockgate.storage_core.journal.entries.leases import (
    DropLease,
    FreeLease,
    ParkLease,
    RearmLeases,
    TakeLease,
)
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.references import (
    DropReference,
    FailJob,
    FinishJob,
    LapseReference,
    SubmitJob,
    TakeReference,
)
from lockgate.storage_core.journal.entries.removals import (
    AdoptBlob,
    ForgetBlob,
    ForgetBlobJob,
    MarkDeleting,
    RestageBlob,
)
from lockgate.storage_core.journal.entries.uploads import AbandonUpload, BeginUpload, CompleteUpload, PutBlob

__all__ = ["OPS", "Moment", "Op", "decode_op", "encode_op"]

OPS: Final[tuple[type[Op], ...]] = (
    TakeLease,
    ParkLease,
    FreeLease,
    DropLease,
    RearmLeases,
    RecordJob,
    RecordTask,
    ForgetJob,
    ClaimName,
    ReleaseName,
    BeginUpload,
    PutBlob,
    CompleteUpload,
    AbandonUpload,
    SubmitJob,
    TakeReference,
    DropReference,
    LapseReference,
    FailJob,
    FinishJob,
    AdoptBlob,
    MarkDeleting,
    RestageBlob,
    ForgetBlob,
    ForgetBlobJob,
)
"""Every kind of entry."""

_BY_TAG: Final = {str(kind.__struct_config__.tag): kind for kind in OPS}


def encode_op(op: Op) -> tuple[str, str]:
    """Return an entry's name and its payload, in JSON."""
    return str(op.__struct_config__.tag), msgspec.json.encode(op, order="deterministic").decode()


def decode_op(name: str, payload: str, where: str) -> Op:
    """Read an entry.

    Raises:
        MalformedJournalError: Its kind is unknown, or a field is wrong; the message names the entry.
    """
    kind = _BY_TAG.get(name)
    if kind is None:
        raise MalformedJournalError(f"{where}: {name[:60]!r} is no kind of entry that this version knows")
    try:
        return msgspec.json.decode(payload, type=kind)
    except msgspec.DecodeError as error:
        raise MalformedJournalError(f"{where}: not a readable {name}: {error}") from None


def decode_result(op: Op, result: str, where: str) -> Any:
    """Read what an entry's fold returned.

    Raises:
        MalformedJournalError: It is not what this kind of entry returns.
    """
    try:
        return msgspec.json.decode(result, type=op.RESULT)
    except msgspec.DecodeError as error:
        raise MalformedJournalError(
            f"{where}: not a readable result of {type(op).__name__}: {error}"
        ) from None
