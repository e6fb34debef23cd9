"""Strategies of the property tests: JSON, records of all types, and hostile mutations of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from lockgate.storage_core.commit.records.codec import Record
from lockgate.storage_core.commit.records.job_record import JobArtefacts

JsonPath = tuple[str | int, ...]

_RAW: Final = "\ue000"
"""Encloses text that stands in a document as it is, though Python's JSON would not write it."""
_TWIN: Final = "\ue001"
"""At the end of a field's name: goes, so that the name stands there twice."""


def raw(text: str) -> str:
    """Return what `to_json` writes as this text, without quotes."""
    return f"{_RAW}{text}{_RAW}"


def to_json(document: object) -> bytes:
    """Write a document that holds raw texts and twin fields."""
    text = json.dumps(document)
    text = re.sub(rf'"{_escape(_RAW)}(.*?){_escape(_RAW)}"', lambda match: match[1], text)
    return text.replace(json.dumps(_TWIN)[1:-1], "").encode()


JSON_VALUES: Final[SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
"""Any JSON, also what only Python's reader takes for it (`NaN`, lone surrogates)."""

PATHS_OUT: Final = (
    "",
    ".",
    "..",
    "../victim/secret.csv",
    "../../victim/secret.csv",
    "day=1/../../victim/secret.csv",
    "/etc/passwd",
    "~/secret.csv",
    "file:///etc/passwd",
    "_lockgate/uploads/../../../victim/secret.csv",
    "a\\..\\..\\victim",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "\ud800",
    "e\u0301.csv",
    "a" * 300,
    "a/" * 600,
    "x" * 100_000,
)
FOREIGN_IDS: Final = (
    "sales-g1",
    "other-g1",
    "sales-g0",
    "sales-g01",
    "-g1",
    "aaaaaaaaaa",
    "0" * 64,
    "f" * 32,
)
NUMBERS: Final = (-1, 0, 1, 2, 10**8, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308, 5e-324)
RAW_NUMBERS: Final = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "01", "0x1F", "1.")
NESTED: Final = ("[" * 200 + "]" * 200, "[" * 50_000 + "]" * 50_000, '{"a":' * 5_000 + "1" + "}" * 5_000)


def hostile_values(victim: str, standing: object = None) -> SearchStrategy[Any]:
    """Return values that no field should have: of other types, signs and sizes, foreign, or leading out.

    Args:
        victim: A path outside the destination.
        standing: Current value of the field; most values are of its type.
    """
    texts = st.sampled_from((victim, f"{victim}/secret.csv", *PATHS_OUT, *FOREIGN_IDS))
    numbers = st.sampled_from(NUMBERS) | st.sampled_from(RAW_NUMBERS).map(raw)
    others = st.sampled_from((True, None, [], {}, [[]])) | st.sampled_from(NESTED).map(raw) | JSON_VALUES
    match standing:
        case str():
            return st.one_of(texts, texts, texts, numbers, others)
        case int() | float():
            return st.one_of(numbers, numbers, numbers, texts, others)
        case _:
            return st.one_of(texts, numbers, others)


@st.composite
def mutations(draw: st.DrawFn, document: dict[str, Any], victim: str) -> bytes:
    """Make one change to a valid document: change a value, or remove, repeat or add a field."""
    path = draw(st.sampled_from(sorted(places(document), key=str)))
    changed: dict[str, Any] = json.loads(json.dumps(document))
    holder, name = at(changed, path[:-1]), path[-1]
    match draw(st.sampled_from(("replace", "replace", "replace", "remove", "double", "add"))):
        case "remove":
            del holder[name]
        case "double" if isinstance(holder, dict):
            holder[f"{name}{_TWIN}"] = draw(hostile_values(victim, holder[name]))
        case "add" if isinstance(holder, dict):
            holder[draw(st.text(max_size=10))] = draw(hostile_values(victim))
        case _:
            holder[name] = draw(hostile_values(victim, holder[name]))
    return to_json(changed)


def places(value: object, here: JsonPath = ()) -> Iterator[JsonPath]:
    """Yield the path of every field and entry of a document, the outermost too."""
    entries: Sequence[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    for name, inner in entries:
        yield (*here, name)
        yield from places(inner, (*here, name))


def at(value: Any, path: JsonPath) -> Any:
    """Return the value at a path of a document."""
    for name in path:
        value = value[name]
    return value


def records(kind: type[Record]) -> SearchStrategy[dict[str, Any]]:
    """Return documents with the form of a record and arbitrary values."""
    found: SearchStrategy[dict[str, Any]] = _values(msgspec.inspect.type_info(kind))
    return found


@st.composite
def _artefacts(draw: st.DrawFn, info: msgspec.inspect.StructType) -> dict[str, Any]:
    """Return artefacts whose lists are of equal length, which their type does not require."""
    values = {field.name: _values(field.type) for field in info.fields}
    keys, names = draw(values["blob_keys"]), draw(values["names"])
    length = min(len(keys), len(names))
    return {"job_id": draw(values["job_id"]), "blob_keys": keys[:length], "names": names[:length]}


def _values(info: msgspec.inspect.Type) -> SearchStrategy[Any]:  # noqa: PLR0911, PLR0912 - one for each type
    """Return JSON values that msgspec takes for this type."""
    match info:
        case msgspec.inspect.StructType(cls=cls) if cls is JobArtefacts:
            return _artefacts(info)
        case msgspec.inspect.StructType(fields=fields, tag=tag, tag_field=tag_field):
            tagged = {} if tag_field is None else {tag_field: st.just(tag)}
            required = {field.encode_name: _values(field.type) for field in fields if field.required}
            version = {"version": st.just(1)}
            free = {field.encode_name: _values(field.type) for field in fields if not field.required}
            free |= version if "version" in free else {}
            return st.fixed_dictionaries({**tagged, **required}, optional=free)
        case msgspec.inspect.StrType(pattern=pattern):
            return st.text(max_size=20) if pattern is None else st.from_regex(pattern, fullmatch=True)
        case msgspec.inspect.BytesType():
            return st.binary(max_size=20).map(lambda data: base64.b64encode(data).decode())
        case msgspec.inspect.IntType(ge=least, le=greatest):
            return st.integers(-(2**40) if least is None else least, 2**40 if greatest is None else greatest)
        case msgspec.inspect.FloatType(ge=least):
            return st.floats(least, allow_nan=False, allow_infinity=False)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*map(_values, types))
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=3)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=3)
        case _:
            raise AssertionError(f"{info}: records have no such field yet; add a strategy for it here")


def _escape(character: str) -> str:
    return re.escape(json.dumps(character)[1:-1])
