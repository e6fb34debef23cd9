"""Check that both databases can store a mutation, before it joins a group whose transaction would fail."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.op import Op
from lockgate.storage_core.journal.write.mutation import Mutation

_KEY_BYTES: Final = 2_400
"""PostgreSQL limits an index entry to 2,704 bytes."""

_LONGEST_CHARACTER: Final = 4
"""Longest UTF-8 character, in bytes."""

_GREATEST: Final = 2**63
_UNKEPT: Final = re.compile("[\0\ud800-\udfff]")


def check_values(mutation: Mutation) -> None:
    """Raise if one of the databases could not store a value unchanged.

    Raises:
        InvalidInputError: A text contains a null character or half a surrogate pair, a key is too long, or a
            number is not finite or needs more than 64 bits.
    """
    op, request_id = mutation.op, mutation.request_id
    if not (_can_be_kept(request_id) and all(map(_can_be_kept, msgspec.structs.astuple(op)))):
        raise _unkept(mutation)
    families = known_families()
    for _, key in families.touches(op):
        _check_length(op, key)
    for name in families.indexed.intersection(op.__struct_fields__):
        _check_length(op, (getattr(op, name),))
    _check_length(op, (request_id,))


def _can_be_kept(value: Any) -> bool:
    if isinstance(value, str):
        return (value.isascii() and "\0" not in value) or _UNKEPT.search(value) is None
    if isinstance(value, tuple):
        return all(map(_can_be_kept, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -_GREATEST <= value < _GREATEST


def _unkept(mutation: Mutation) -> InvalidInputError:
    fields = {"request_id": mutation.request_id, **msgspec.structs.asdict(mutation.op)}
    name, value = next((name, value) for name, value in fields.items() if not _can_be_kept(value))
    return InvalidInputError(
        f"{type(mutation.op).__name__}: {name} {value!r:.100} cannot be kept by every database; "
        "nothing was changed; use text without null characters and surrogates, and finite numbers"
    )


def _check_length(op: Op, key: tuple[Any, ...]) -> None:
    text = "".join(map(str, key))
    if len(text) <= _KEY_BYTES // _LONGEST_CHARACTER or (size := len(text.encode())) <= _KEY_BYTES:
        return
    raise InvalidInputError(
        f"{type(op).__name__}: {str(key[0])[:100]}… is {size} bytes long, a name may be "
        f"{_KEY_BYTES}; nothing was changed; use a shorter one"
    )
