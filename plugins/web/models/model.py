"""The base class `Model` of all types of the API, and a page of a list."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

Item = TypeVar("Item")


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
