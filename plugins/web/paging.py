"""Pages of a list: the query parameters `after` and `limit`.

`after` contains the key of the last item of the previous page, so a page costs the same wherever it lies.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Final, TypeAlias

from fastapi import Query

from lockgate.storage_core.errors import InvalidInputError

MAX_LIMIT: Final = 200
DEFAULT_LIMIT: Final = 50

Key: TypeAlias = tuple[str | int | float | None, ...]
"""Key of an item: what its list is ordered by."""

After = Annotated[
    str | None,
    Query(max_length=16_384, description="`next_after` of the previous page; without it, the first page."),
]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items.")]


def cursor(name: str, key: Key) -> str:
    """Return the value of `after` for the page that follows an item.

    Args:
        name: Name of the list; `key_after` refuses a cursor of another one.
        key: Key of the item.
    """
    return urlsafe_b64encode(json.dumps([name, *key], separators=(",", ":")).encode()).decode().rstrip("=")


def key_after(name: str, after: str | None, *kinds: type | tuple[type, ...]) -> Key | None:
    """Return the key in a value of `after`, None for the first page.

    Args:
        name: Name of the list.
        after: What `cursor` returned.
        kinds: Types of the parts of the key.

    Raises:
        InvalidInputError: The value is not a cursor of this list.
    """
    if not after:
        return None
    try:
        found = json.loads(urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    match found:
        case [str(own), *key] if own == name and len(key) == len(kinds):
            if all(isinstance(part, kind) for part, kind in zip(key, kinds, strict=True)):
                return tuple(key)
    raise InvalidInputError(
        "after: this is not `next_after` of a page of this list; nothing was read; begin without `after`"
    )
