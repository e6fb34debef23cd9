"""Parse column types, as Spark or Arrow spell them, and values of them that are recorded as text."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

from lockgate.storage_core.errors import InvalidInputError

_NAMES: Final = {
    "tinyint": "byte", "byte": "byte", "int8": "byte",
    "smallint": "short", "short": "short", "int16": "short",
    "int": "integer", "integer": "integer", "int32": "integer",
    "bigint": "long", "long": "long", "int64": "long",
    "float": "float", "real": "float", "float32": "float",
    "double": "double", "float64": "double",
    "boolean": "boolean", "bool": "boolean",
    "string": "string", "large_string": "string", "string_view": "string", "utf8": "string",
    "binary": "binary", "large_binary": "binary", "binary_view": "binary",
    "date": "date", "date32": "date", "date32[day]": "date",
    "timestamp": "timestamp", "timestamp_ltz": "timestamp", "timestamp_ntz": "timestamp_ntz",
}  # fmt: skip
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|\w+\[[^\]]*\]|\w+|\S)")
_ARROW_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*tz=(.+))?\]")


class ColumnType(NamedTuple):
    """A type of Spark's type system.

    Attributes:
        name: `long`, `string`, …, as Delta spells it; or `decimal`, `array`, `map`, `struct`.
        children: Name and type of the fields; `element` of an array, `key` and `value` of a map.
        precision: Digits of a decimal.
        scale: Digits after its point.
    """

    name: str
    children: tuple[tuple[str, ColumnType], ...] = ()
    precision: int = 0
    scale: int = 0

    def spelled(self) -> str:
        """Return the type as its name, and a decimal with its digits."""
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


def parse_type(column: str, text: str) -> ColumnType:
    """Return the type of a column.

    Args:
        column: Name of the column, for the error.
        text: Its type, as `array<bigint>` or `list<item: int64>`.

    Raises:
        InvalidInputError: A table cannot have this type, or it cannot be parsed.
    """
    tokens = [found[1] for found in _TOKEN.finditer(text)]
    try:
        kind = _type(tokens)
    except (IndexError, ValueError, RecursionError) as error:
        why = "it is not complete" if isinstance(error, IndexError) else error
        raise InvalidInputError(
            f"column {column!r} has the type {text[:200]!r}, which Delta and Iceberg tables cannot have "
            f"({why}); leave the table out, or write the column as another type, such as bigint, "
            "timestamp[us] or string"
        ) from None
    if tokens:
        raise InvalidInputError(f"column {column!r}: its type {text[:200]!r} cannot be parsed")
    return kind


def _type(tokens: list[str]) -> ColumnType:
    name = tokens.pop(0)
    word = name.lower()
    if word.startswith("timestamp["):
        return _arrow_timestamp(word)
    if word in {"decimal", "decimal128"}:
        return _decimal(tokens)
    if word in {"array", "list", "large_list", "map", "struct"}:
        return _nested(word.removeprefix("large_"), tokens)
    if word in {"varchar", "char"}:
        _expect(tokens, "(")
        tokens.pop(0)
        _expect(tokens, ")")
        return ColumnType("string")
    if word not in _NAMES:
        raise ValueError(f"{name} is not known")
    return ColumnType(_NAMES[word])


def _arrow_timestamp(word: str) -> ColumnType:
    found = _ARROW_TIMESTAMP.fullmatch(word)
    if found is None or found[1] == "ns":
        raise ValueError("timestamps are in microseconds")
    return ColumnType("timestamp" if found[2] else "timestamp_ntz")


def _decimal(tokens: list[str]) -> ColumnType:
    if tokens[:1] != ["("]:
        return ColumnType("decimal", precision=10)
    _expect(tokens, "(")
    precision, scale = int(tokens.pop(0)), 0
    if tokens[0] == ",":
        tokens.pop(0)
        scale = int(tokens.pop(0))
    _expect(tokens, ")")
    if not 0 <= scale <= precision <= 38:
        raise ValueError("a decimal has up to 38 digits")
    return ColumnType("decimal", precision=precision, scale=scale)


def _nested(word: str, tokens: list[str]) -> ColumnType:
    names = {"array": ("element",), "list": ("element",), "map": ("key", "value"), "struct": None}[word]
    _expect(tokens, "<")
    children: list[tuple[str, ColumnType]] = []
    while True:
        is_named = len(tokens) > 1 and tokens[1] == ":"
        name = tokens.pop(0) if is_named else ""
        if is_named:
            tokens.pop(0)
        elif names is None:
            raise ValueError("a field has no name")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        children.append((name if names is None else names[len(children)], _type(tokens)))
        while tokens[0] not in {",", ">"}:  # Arrow's `not null` and `('entries')`
            tokens.pop(0)
        if tokens.pop(0) == ">":
            break
    if names is not None and len(children) != len(names):
        raise ValueError(f"{word} has {len(children)} types")
    return ColumnType("array" if word == "list" else word, tuple(children))


def _expect(tokens: list[str], token: str) -> None:
    if tokens.pop(0) != token:
        raise ValueError(f"{token} is missing")


def parse_value(kind: ColumnType, text: str) -> Any:
    """Return the value of a flat type that a statistic or a folder's name has as text.

    Raises:
        ValueError: The text is no such value.
    """
    try:
        return _PARSE[kind.name](text)
    except (KeyError, ArithmeticError):
        raise ValueError(f"{text!r} is no {kind.name}") from None


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _moment(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return found if found.tzinfo is None else found.astimezone(dt.UTC).replace(tzinfo=None)


_PARSE: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": _boolean,
    "string": str,
    "date": dt.date.fromisoformat,
    "timestamp": _moment,
    "timestamp_ntz": _moment,
    "decimal": Decimal,
}
