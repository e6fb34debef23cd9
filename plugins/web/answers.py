"""What the answers of the API are made of: the base class of its types, and pages of lists.

The query parameter `after` has the key of the last item of the previous page, so a page costs the same
wherever it lies.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, field_validator

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

Item = TypeVar("Item")
Source = TypeVar("Source")


class Model(BaseModel):
    """A type of the API. Times are seconds since the epoch, sizes are bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)

    @field_validator("*", check_fields=False)
    @classmethod
    def _encodable(cls, value: Any) -> Any:
        """Escape what UTF-8 cannot encode: names of files may be any bytes."""
        match value:
            case str() if not value.isascii():
                return value.encode(errors="backslashreplace").decode()
            case tuple():
                return tuple(cls._encodable(part) if isinstance(part, str) else part for part in value)
        return value


class Page(Model, Generic[Item]):
    """A part of a list, in a fixed order.

    Attributes:
        items: At most as many as the request's `limit`.
        next_after: Value of `after` for the next page; None if this is the last one.
        unknown: What could not be read, and why, one sentence each: the list may be incomplete.
    """

    items: tuple[Item, ...]
    next_after: str | None = None
    unknown: tuple[str, ...] = Field(default=())


def page_of(
    name: str,
    found: Sequence[Source],
    limit: int,
    key_of: Callable[[Source], Key],
    item_of: Callable[[Source], Item],
    *,
    unknown: tuple[str, ...] = (),
) -> Page[Item]:
    """Return the page of a list that begins with what was found.

    Args:
        name: Name of the list in its cursors.
        found: What the items are made of; more than `limit` of them if another page follows.
        limit: Maximum number of items.
        key_of: Returns the key of what an item is made of.
        item_of: Returns the item.
        unknown: What could not be read.
    """
    return Page(
        items=tuple(item_of(each) for each in found[:limit]),
        next_after=cursor(name, key_of(found[limit - 1])) if len(found) > limit else None,
        unknown=unknown,
    )


def cursor(name: str, key: Key) -> str:
    """Return the value of `after` for the page that follows an item.

    Args:
        name: Name of the list; `key_after` refuses a cursor of another one.
        key: Key of the item.
    """
    return urlsafe_b64encode(json.dumps([name, *key], separators=(",", ":")).encode()).decode().rstrip("=")


def key_after(name: str, after: str | None, *kinds: type | tuple[type, ...]) -> Any:
    """Return the key in a value of `after`, a tuple of these types; None for the first page.

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
