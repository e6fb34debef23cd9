"""Read a file's column as a wider type, never as a narrower one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from pyarrow import types

from lockgate.storage_core.errors import InvalidInputError


def widened(column: pa.Array, wanted: pa.Field, where: str) -> pa.Array:
    """Return a column as the wanted type.

    Args:
        column: Values of a file.
        wanted: Field of the schema that is read.
        where: URL of the file, for the message.

    Raises:
        InvalidInputError: A value of the file might not exist in the wanted type.
    """
    if fits(column.type, wanted.type):
        try:
            return column.cast(wanted.type)
        except pa.ArrowException as error:
            reason = f" ({error})"
    else:
        reason = ""
    raise InvalidInputError(
        f"{where}: column {wanted.name!r} is {column.type}, which cannot be read as {wanted.type} without "
        f"loss{reason}; read with a schema that has the wider type, spark.read.schema(…)"
    )


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column may be cast: Arrow then keeps every value, or raises."""
    if found.equals(wanted):
        return True
    rule = next((rule for is_kind, rule in _RULES if is_kind(found)), None)
    return rule is not None and rule(found, wanted)


def _fields_fit(found: pa.DataType, wanted: pa.DataType) -> bool:
    kinds = (types.is_list, types.is_large_list, types.is_map, types.is_struct)
    if found.num_fields != wanted.num_fields or not any(is_kind(wanted) for is_kind in kinds):
        return False
    pairs = [(found.field(n), wanted.field(n)) for n in range(found.num_fields)]
    same = types.is_struct(found) == types.is_struct(wanted) and types.is_map(found) == types.is_map(wanted)
    named = not types.is_struct(found) or all(one.name == other.name for one, other in pairs)
    return same and named and all(fits(one.type, other.type) for one, other in pairs)


def _integer_fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_decimal(wanted):
        return bool(wanted.precision - wanted.scale >= _DIGITS[found.bit_width])
    if types.is_floating(wanted):
        return bool(wanted.bit_width > found.bit_width or wanted.bit_width == _DOUBLE)
    unsigned, into_unsigned = types.is_unsigned_integer(found), types.is_unsigned_integer(wanted)
    wide = wanted.bit_width - (unsigned and not into_unsigned) if types.is_integer(wanted) else 0
    return bool(wide >= found.bit_width and (unsigned or not into_unsigned))


def _decimal_fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if not types.is_decimal(wanted) or wanted.scale < found.scale:
        return False
    return bool(wanted.precision - wanted.scale >= found.precision - found.scale)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
_DOUBLE: Final = 64
_RULES: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]]]] = (
    (types.is_null, lambda _found, _wanted: True),
    (types.is_dictionary, lambda found, wanted: fits(found.value_type, wanted)),
    (types.is_integer, _integer_fits),
    (
        types.is_floating,
        lambda found, wanted: types.is_floating(wanted) and wanted.bit_width > found.bit_width,
    ),
    (types.is_decimal, _decimal_fits),
    (
        types.is_date,
        lambda _, wanted: types.is_date(wanted) or (types.is_timestamp(wanted) and not wanted.tz),
    ),
    # A cast to a coarser unit raises if a value would lose digits.
    (types.is_timestamp, lambda _found, wanted: types.is_timestamp(wanted)),
    (types.is_time, lambda _found, wanted: types.is_time(wanted)),
    (_is_text, lambda _found, wanted: _is_text(wanted)),
    (_is_bytes, lambda _found, wanted: _is_bytes(wanted)),
    (lambda found: found.num_fields > 0, _fields_fit),
)
