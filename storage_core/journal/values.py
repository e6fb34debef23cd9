"""What both databases can keep: looked at before a mutation joins others, whose transaction it would fail."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from storage_core.errors import InvalidInputError
from storage_core.journal.mutation import Mutation

_KEY_BYTES: Final = 2_400
"""PostgreSQL bounds an entry of an index at 2,704 bytes."""

_INDEXED: Final = frozenset({"request_id", "holder"})
"""The fields that stand in an index, besides those that are keys."""

_GREATEST: Final = 2**63
_UNKEPT: Final = re.compile("[\0\ud800-\udfff]")


def check_values(mutation: Mutation) -> None:
    """Let only such values pass as both databases keep unchanged.

    Raises:
        InvalidInputError: A text holds a null character or half a surrogate pair, a key is too long, or a
            number is not finite or takes more than 64 bits.
    """
    fields = {"request_id": mutation.request_id, **msgspec.structs.asdict(mutation.op)}
    for name, value in fields.items():
        if not _can_be_kept(value):
            raise InvalidInputError(
                f"{type(mutation.op).__name__}: {name} {value!r:.100} cannot be kept by every database; "
                "nothing was changed; use text without null characters and surrogates, and finite numbers"
            )
    keys = [key for _, key in mutation.op.touches()]
    for key in (*keys, *((fields[name],) for name in _INDEXED & fields.keys())):
        size = sum(len(str(part).encode()) for part in key)
        if size > _KEY_BYTES:
            raise InvalidInputError(
                f"{type(mutation.op).__name__}: {str(key[0])[:100]}… is {size} bytes long, a name may be "
                f"{_KEY_BYTES}; nothing was changed; use a shorter one"
            )


def _can_be_kept(value: Any) -> bool:
    if isinstance(value, str):
        return _UNKEPT.search(value) is None
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -_GREATEST <= value < _GREATEST
