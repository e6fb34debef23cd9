"""Read rows and column statistics from a Parquet footer for the pending set.

Arrow is not used: a footer that it does not expect, such as that of a file with encrypted columns, or a
damaged one, ends its process.

Source: Apache Parquet, `parquet.thrift`.
"""

from __future__ import annotations

import datetime as dt
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from io import SEEK_END
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import field

from lockgate.storage_core.commit.records.job_record import Count
from lockgate.storage_core.commit.records.pending_set import ColumnStatistics
from lockgate.storage_core.commit.uploads.thrift_compact import decode_struct
from lockgate.storage_core.decoding import convert
from lockgate.storage_core.printable import printable

LOG: Final = logging.getLogger("lockgate.uploads")

STATISTICS_COLUMNS: Final = 32
"""Maximum number of columns with bounds, which keeps pending sets small."""
NAMED_COLUMNS: Final = 200
"""Maximum number of columns that are recorded, most of them with their type only."""
STATISTICS_LENGTH: Final = 64
"""Maximum length of a minimum or maximum as text."""
TAIL_BYTES: Final = 1024 * 1024
"""A file's last bytes, in which its footer is looked for."""

_MARK, _ENCRYPTED_MARK = b"PAR1", b"PARE"
MAX_DEPTH: Final = 64
"""Maximum depth of a nested column whose type is read."""
_MARK_BYTES: Final = 8
"""Size of the footer's length and the mark, after the footer."""


def statistics_in_tail(tail: bytes, name: str) -> tuple[int, dict[str, ColumnStatistics]] | None:
    """Return the rows and statistics of a Parquet file from its last bytes.

    None if they hold no whole footer: statistics are never a reason to fail a write, but a file that looks
    like Parquet and cannot be read is logged.

    Args:
        tail: The file's last bytes.
        name: Name of the file, for the log.
    """
    if not tail.endswith(_MARK):
        return None
    try:
        footer = footer_in_tail(tail)
        return footer.rows, footer_statistics(footer)
    except ValueError as error:
        LOG.warning(
            "%s: its Parquet footer was not read, so its rows and column statistics are not recorded; the "
            "file is written as it is: %s",
            printable(name),
            printable(str(error)),
        )
        return None


def statistics_of_file(file: Path, name: str) -> tuple[int, dict[str, ColumnStatistics]] | None:
    """Return the rows and statistics of a finished Parquet file, as `statistics_in_tail`."""
    return statistics_in_tail(_tail(file, TAIL_BYTES), name)


def rows_of_file(file: Path) -> int | None:
    """Return the rows of a finished Parquet file; None if its footer is encrypted.

    Raises:
        ValueError: It is not a whole Parquet file.
    """
    if _tail(file, _MARK_BYTES).endswith(_ENCRYPTED_MARK):
        return None
    from pyarrow import parquet  # noqa: PLC0415 - slow to import

    # Arrow is much faster with large footers, and does not end the process for this number.
    return int(parquet.read_metadata(file).num_rows)


def columns_of_file(file: Path) -> list[tuple[str, str]]:
    """Return name and type of the columns of a finished Parquet file; none if its footer cannot be read."""
    found = statistics_of_file(file, file.name)
    return [] if found is None else [(name, column.type) for name, column in found[1].items()]


def _tail(file: Path, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(-min(size, opened.seek(0, SEEK_END)), SEEK_END)
        return opened.read()


class _Statistics(msgspec.Struct, frozen=True):
    """`Statistics`: without the fields `min` and `max` of old writers, whose order is not defined."""

    nulls: Count | None = field(name="3", default=None)
    maximum: bytes | None = field(name="5", default=None)
    minimum: bytes | None = field(name="6", default=None)
    is_maximum_exact: bool = field(name="7", default=True)
    is_minimum_exact: bool = field(name="8", default=True)

    @property
    def bounds(self) -> tuple[bytes, bytes] | None:
        if self.minimum is None or self.maximum is None:
            return None
        return (self.minimum, self.maximum) if self.is_minimum_exact and self.is_maximum_exact else None


class _ColumnMetaData(msgspec.Struct, frozen=True):
    codec: int = field(name="4")
    values: Count = field(name="5")
    statistics: _Statistics | None = field(name="12", default=None)


class _ColumnChunk(msgspec.Struct, frozen=True):
    """`ColumnChunk`; an encrypted one has no metadata here, or no statistics."""

    metadata: _ColumnMetaData | None = field(name="3", default=None)


class _RowGroup(msgspec.Struct, frozen=True):
    columns: list[_ColumnChunk] = field(name="1")
    rows: Count = field(name="3")


class _DecimalType(msgspec.Struct, frozen=True):
    scale: Count = field(name="1")
    precision: Count = field(name="2")


class _TimeType(msgspec.Struct, frozen=True):
    """`TimeType` and `TimestampType`, with the unit as the one field that its union has."""

    is_utc: bool = field(name="1")
    unit_field: dict[str, Any] = field(name="2")

    @property
    def unit(self) -> str:
        """`ms`, `us` or `ns`."""
        unit = _UNITS.get(next(iter(self.unit_field), ""))
        if unit is None:
            raise ValueError("a column has an unknown unit of time")
        return unit


class _IntegerType(msgspec.Struct, frozen=True):
    bits: int = field(name="1")
    is_signed: bool = field(name="2")


class _LogicalType(msgspec.Struct, frozen=True):
    """`LogicalType`, a union: one field is set."""

    string: Any = field(name="1", default=None)
    map: Any = field(name="2", default=None)
    list: Any = field(name="3", default=None)
    enum: Any = field(name="4", default=None)
    decimal: _DecimalType | None = field(name="5", default=None)
    date: Any = field(name="6", default=None)
    time: _TimeType | None = field(name="7", default=None)
    timestamp: _TimeType | None = field(name="8", default=None)
    integer: _IntegerType | None = field(name="10", default=None)
    json: Any = field(name="12", default=None)
    bson: Any = field(name="13", default=None)
    float16: Any = field(name="15", default=None)
    variant: Any = field(name="16", default=None)
    geometry: Any = field(name="17", default=None)
    geography: Any = field(name="18", default=None)

    @property
    def is_text(self) -> bool:
        return any(value is not None for value in (self.string, self.enum, self.json))


_UNITS: Final = {"1": "ms", "2": "us", "3": "ns"}
_MS, _US = (_TimeType(is_utc=True, unit_field={number: {}}) for number in ("1", "2"))
_CONVERTED: Final = {
    0: _LogicalType(string={}),
    1: _LogicalType(map={}),
    2: _LogicalType(map={}),
    3: _LogicalType(list={}),
    4: _LogicalType(enum={}),
    6: _LogicalType(date={}),
    7: _LogicalType(time=_MS),
    8: _LogicalType(time=_US),
    9: _LogicalType(timestamp=_MS),
    10: _LogicalType(timestamp=_US),
    **{11 + n: _LogicalType(integer=_IntegerType(bits=8 << n, is_signed=False)) for n in range(4)},
    **{15 + n: _LogicalType(integer=_IntegerType(bits=8 << n, is_signed=True)) for n in range(4)},
    19: _LogicalType(json={}),
}
"""`ConvertedType` of files of old writers, which have no logical types."""
_CONVERTED_DECIMAL: Final = 5
_CONVERTED_BYTES: Final = frozenset({20, 21})
"""BSON and INTERVAL."""
_REPEATED: Final = 2


class _SchemaElement(msgspec.Struct, frozen=True):
    """`SchemaElement`: the schema is a tree, written depth first."""

    name: bytes = field(name="4")
    physical: int | None = field(name="1", default=None)
    length: Count = field(name="2", default=0)
    repetition: int = field(name="3", default=0)
    children: Count = field(name="5", default=0)
    converted: int | None = field(name="6", default=None)
    scale: Count = field(name="7", default=0)
    precision: Count = field(name="8", default=0)
    given_logical: _LogicalType | None = field(name="10", default=None)

    @property
    def logical(self) -> _LogicalType:
        if self.given_logical is not None:
            return self.given_logical
        if self.converted == _CONVERTED_DECIMAL:
            return _LogicalType(decimal=_DecimalType(scale=self.scale, precision=self.precision))
        return _CONVERTED.get(-1 if self.converted is None else self.converted, _LogicalType())

    @property
    def is_kept_by_arrow(self) -> bool:
        """Whether Arrow knows the type; it reads others as bytes or structs, and writes them as such."""
        found = self.logical
        others = (found.enum, found.bson, found.variant, found.geometry, found.geography)
        return self.converted not in _CONVERTED_BYTES and all(each is None for each in others)

    @property
    def is_flat(self) -> bool:
        return not self.children and self.repetition != _REPEATED


class FileMetaData(msgspec.Struct, frozen=True):
    """`FileMetaData`: the footer of a Parquet file, as far as it is needed here."""

    schema: list[_SchemaElement] = field(name="2")
    rows: Count = field(name="3")
    row_groups: list[_RowGroup] = field(name="4")
    encryption: dict[str, Any] | None = field(name="8", default=None)


def footer_in_tail(tail: bytes) -> FileMetaData:
    """Return the footer at the end of a file.

    Raises:
        ValueError: There is none, or it is longer than the tail, or damaged.
    """
    if not tail.endswith(_MARK):
        raise ValueError(f"it does not end with {_MARK.decode()}")
    size = int.from_bytes(tail[-_MARK_BYTES:-4], "little")
    if not 0 < size <= len(tail) - _MARK_BYTES:
        raise ValueError(f"its footer of {size} bytes is not within its last {len(tail)} bytes")
    try:
        footer = convert(decode_struct(tail[-_MARK_BYTES - size : -_MARK_BYTES]), FileMetaData)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if footer.rows != sum(group.rows for group in footer.row_groups):
        raise ValueError(f"its row groups do not add up to {footer.rows} rows")
    return footer


def footer_statistics(footer: FileMetaData) -> dict[str, ColumnStatistics]:
    """Return the type of each column, and nulls, minimum and maximum of the first flat columns, by name."""
    found: dict[str, ColumnStatistics] = {}
    bounded = 0
    for at, leaf in _columns(footer.schema):
        if len(found) == NAMED_COLUMNS:
            break
        element = footer.schema[at]
        if element.is_flat and bounded < STATISTICS_COLUMNS:
            bounded += 1
            found[element.name.decode()] = _column_statistics(footer, leaf, _kind(element))
        else:
            found[element.name.decode()] = ColumnStatistics(type=_type_of(footer.schema, at).name)
    return found


class _TypeName(NamedTuple):
    """Name of an element's type, those of its fields, and the number of the element after it."""

    name: str
    fields: list[str]
    after: int


def _type_of(schema: Sequence[_SchemaElement], at: int, depth: int = MAX_DEPTH) -> _TypeName:
    """Return the name of a type, of a nested one as Spark spells it: array<struct<`a`:int64>>."""
    element, after = schema[at], at + 1
    names, fields = [], []
    for _ in range(element.children):
        if after == len(schema) or not depth:
            raise ValueError("its schema ends within a column, or is nested too deeply")
        names.append(schema[after].name.decode())
        fields.append(_type_of(schema, after, depth - 1))
        after = fields[-1].after
    if not fields:
        name = _kind(element).name
    elif element.logical.map is not None:
        name = f"map<{','.join(fields[0].fields)}>"
    elif element.logical.list is not None:
        # A group of one field around each element, or, of old writers, the elements themselves.
        is_group = len(fields[0].fields) == 1 and names[0] != "array" and not names[0].endswith("_tuple")
        name = f"array<{fields[0].fields[0] if is_group else fields[0].name}>"
    else:
        quoted = (f"`{field.replace('`', '``')}`" for field in names)
        parts = (f"{field}:{kind.name}" for field, kind in zip(quoted, fields, strict=True))
        name = f"struct<{','.join(parts)}>"
    # The repeated group of a list or a map is no array itself: its parent looks at its fields.
    is_array = element.repetition == _REPEATED and not fields
    return _TypeName(f"array<{name}>" if is_array else name, [field.name for field in fields], after)


def _columns(schema: Sequence[_SchemaElement]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of each column's element and of its first leaf: a row group has a chunk a leaf."""
    at, leaf = 1, 0
    for _ in range(schema[0].children if schema else 0):
        column, first, left = at, leaf, 1
        while left:
            if at == len(schema):
                raise ValueError("its schema ends within a column")
            left += schema[at].children - 1
            leaf += not schema[at].children
            at += 1
        yield column, first


class _Kind(NamedTuple):
    """A column's type: its Arrow name, how a bound is read so that bounds can be compared, and its text."""

    name: str
    parse: Callable[[bytes], Any] | None = None
    text: Callable[[Any], str] = str


def _column_statistics(footer: FileMetaData, leaf: int, kind: _Kind) -> ColumnStatistics:
    try:
        chunks = [group.columns[leaf].metadata for group in footer.row_groups]
    except IndexError:
        raise ValueError("a row group has not all columns of the schema") from None
    known = [(chunk.values, chunk.statistics) for chunk in chunks if chunk and chunk.statistics]
    counts = [statistics.nulls for _, statistics in known if statistics.nulls is not None]
    if len(counts) < len(chunks):
        return ColumnStatistics(type=kind.name)
    nulls = sum(counts)
    if nulls > footer.rows:
        raise ValueError("a column has more nulls than rows")
    # A row group of nulls has no bounds and is skipped; values without bounds (NaN) make them unknown.
    bounds = [statistics.bounds for values, statistics in known if (statistics.nulls or 0) < values]
    ends = [pair for pair in bounds if pair is not None]
    if kind.parse is None or not ends or len(ends) < len(bounds):
        return ColumnStatistics(type=kind.name, nulls=nulls)
    try:
        lowest = kind.text(min(kind.parse(low) for low, _ in ends))
        highest = kind.text(max(kind.parse(high) for _, high in ends))
    except (ValueError, ArithmeticError, struct.error):  # such as a date after the year 9999
        return ColumnStatistics(type=kind.name, nulls=nulls)
    if max(len(lowest), len(highest)) > STATISTICS_LENGTH:
        return ColumnStatistics(type=kind.name, nulls=nulls)
    return ColumnStatistics(type=kind.name, nulls=nulls, minimum=lowest, maximum=highest)


def _kind(element: _SchemaElement) -> _Kind:
    logical = element.logical
    match element.physical:
        case 0:
            kind = _Kind("bool", lambda raw: raw != b"\0", lambda value: str(value).lower())
        case 1 | 2 as words:
            kind = _whole_number(logical, 32 * words)
        case 3:
            kind = _Kind("timestamp[us, tz=UTC]")  # as Spark takes it; its bounds have no order
        case 4:
            kind = _Kind("float", partial(_floating, "<f"))
        case 5:
            kind = _Kind("double", partial(_floating, "<d"))
        case 6 | 7 if logical.decimal is not None:
            kind = _decimal(logical.decimal, "big")
        case 6:
            kind = _Kind("string", bytes.decode) if logical.is_text else _Kind("binary")
        case 7 if logical.float16 is not None:
            kind = _Kind("halffloat", partial(_floating, "<e"))
        case 7:
            kind = _Kind(f"fixed_size_binary[{element.length}]")
        case unknown:
            raise ValueError(f"a column has the unknown type {unknown}")
    return kind


def _whole_number(logical: _LogicalType, bits: int) -> _Kind:
    signed = partial(int.from_bytes, byteorder="little", signed=True)
    if logical.decimal is not None:
        return _decimal(logical.decimal, "little")
    if logical.date is not None:
        return _Kind("date32[day]", signed, lambda days: str(_EPOCH.date() + dt.timedelta(days)))
    if (time := logical.time) is not None:
        return _Kind(f"time{bits}[{time.unit}]", signed, lambda value: str(_moment(value, time).time()))
    if (moment := logical.timestamp) is not None:
        zone = ", tz=UTC" if moment.is_utc else ""
        return _Kind(f"timestamp[{moment.unit}{zone}]", signed, lambda value: str(_moment(value, moment)))
    if (integer := logical.integer) is not None:
        parse = partial(int.from_bytes, byteorder="little", signed=integer.is_signed)
        return _Kind(f"{'' if integer.is_signed else 'u'}int{integer.bits}", parse)
    return _Kind(f"int{bits}", signed)


_DECIMAL128_DIGITS: Final = 38
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is the column's
_UNITS_IN_S: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9}


def _moment(value: int, kind: _TimeType) -> dt.datetime:
    """Return a moment; raise `ValueError` if it has nanoseconds, which Python cannot hold."""
    microseconds, rest = divmod(value * 10**6, _UNITS_IN_S[kind.unit])
    if rest:
        raise ValueError("nanoseconds")
    moment = _EPOCH + dt.timedelta(microseconds=microseconds)
    return moment.replace(tzinfo=dt.UTC) if kind.is_utc else moment


def _decimal(kind: _DecimalType, order: Literal["little", "big"]) -> _Kind:
    name = f"decimal{128 if kind.precision <= _DECIMAL128_DIGITS else 256}({kind.precision}, {kind.scale})"
    parse = partial(int.from_bytes, byteorder=order, signed=True)
    return _Kind(name, parse, lambda value: f"{Decimal(f'{value}e-{kind.scale}'):f}")


def _floating(form: str, raw: bytes) -> float:
    (value,) = struct.unpack(form, raw)
    if value != value:  # noqa: PLR0124 - NaN has no order
        raise ValueError("NaN")
    return float(value)
