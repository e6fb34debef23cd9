"""Records to bytes and back. What is read back from a store is untrusted: typed, versioned, bounded."""

from __future__ import annotations

import hashlib
from typing import Final, TypeVar

import msgspec

from lockgate.storage_core.errors import InvalidInputError, MalformedRecordError

MAX_RECORD_BYTES: Final = 64 * 1024 * 1024


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="record"):
    """Base of all that is stored: immutable, its type in the field `record`, no unknown fields.

    Attributes:
        version: Of the format; a reader refuses versions that it does not know.
    """

    version: int = 1


R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    """Return the one canonical JSON text of a record, ending in a newline.

    Raises:
        InvalidInputError: It would be longer than a record may be, so that nobody could read it.
    """
    data = msgspec.json.encode(record, order="deterministic") + b"\n"
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidInputError(
            f"a {type(record).__name__} of {len(data)} bytes is more than a record may have "
            f"({MAX_RECORD_BYTES}); nothing was written; write fewer files a task"
        )
    return data


def decode(kind: type[R], data: bytes, where: str) -> R:
    """Read a record.

    Args:
        kind: The record type that must stand there.
        data: At most 64 MiB.
        where: The key that it was read from; stands in the error.

    Raises:
        MalformedRecordError: Truncated, too large, of another type or version, or a field is wrong; the
            message names the file and the field.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise MalformedRecordError(f"{where}: {len(data)} bytes is more than a record may have")
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecordError(f"{where}: not a readable {kind.__name__}: {error}") from None
    if record.version != 1:
        raise MalformedRecordError(
            f"{where}: field version is {record.version}; this Lockgate reads version 1: upgrade it"
        )
    return record


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
