"""Encode entries and their results as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import MalformedJournalError
from lockgate.storage_core.journal.entries.family import known_families, tag_of
from lockgate.storage_core.journal.entries.op import Op


def encode_op(op: Op) -> tuple[str, str]:
    """Return an entry's tag and its payload, in JSON."""
    return tag_of(op), msgspec.json.encode(op, order="deterministic").decode()


def decode_op(name: str, payload: str, where: object) -> Op:
    """Decode an entry.

    Raises:
        MalformedJournalError: Its tag is unknown, or a field is invalid; the message names the entry.
    """
    kind = known_families().op(name)
    if kind is None:
        raise MalformedJournalError(f"{where}: {name[:60]!r} is no kind of entry that this version knows")
    try:
        op: Op = decode_json(payload, kind)
    except msgspec.DecodeError as error:
        raise MalformedJournalError(f"{where}: not a readable {name}: {error}") from None
    return op


def decode_result(op: Op, result: str, where: object) -> Any:
    """Decode the return value of an entry's fold.

    Raises:
        MalformedJournalError: It does not have the type that this kind of entry returns.
    """
    try:
        return decode_json(result, op.RESULT)
    except msgspec.DecodeError as error:
        raise MalformedJournalError(
            f"{where}: not a readable result of {type(op).__name__}: {error}"
        ) from None
