"""Encode and decode records. Bytes from a store are untrusted: type, version and size are checked."""

from __future__ import annotations

import hashlib
from typing import Final, TypeVar

import msgspec

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import InvalidInputError, MalformedRecordError, RecordVersionError

MAX_RECORD_BYTES: Final = 64 * 1024 * 1024


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="record"):
    """Base of all stored records: immutable, type in the field `record`, no unknown fields.

    Attributes:
        version: Version of the format; a reader refuses unknown versions.
    """

    version: int = 1


R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    """Return the canonical JSON text of a record, ending in a newline.

    Raises:
        InvalidInputError: The text is longer than readers accept.
    """
    data = msgspec.json.encode(record, order="deterministic") + b"\n"
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidInputError(
            f"a {type(record).__name__} of {len(data)} bytes is more than a record may have "
            f"({MAX_RECORD_BYTES}); nothing was written; write fewer files per task"
        )
    return data


def decode(kind: type[R], data: bytes, where: str) -> R:
    """Decode a record.

    Args:
        kind: Expected record type.
        data: Bytes of the record, at most 64 MiB.
        where: Key that the bytes were read from, for the error message.

    Raises:
        MalformedRecordError: The record is truncated, too large, of another type, or has an invalid field;
            the message names the key and the field.
        RecordVersionError: A newer Lockgate wrote it.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise MalformedRecordError(f"{where}: {len(data)} bytes is more than a record may have")
    try:
        record = decode_json(data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec has no type for this error.
        is_newer = "unknown field" in str(error) and _is_newer(kind, data)
        kind_of_error = RecordVersionError if is_newer else MalformedRecordError
        raise kind_of_error(f"{where}: not a readable {kind.__name__}: {error}") from None
    if record.version != 1:
        raise RecordVersionError(
            f"{where}: field version is {record.version}; this Lockgate reads version 1: upgrade it"
        )
    return record


def _is_newer(kind: type[Record], data: bytes) -> bool:
    """Return whether a record with an unknown field is of a newer version: a damaged key lacks a field."""
    try:
        fields = decode_json(data, dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    version = fields.get("version", 1)
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    return (isinstance(version, int) and version > 1) or required <= fields.keys()


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
