"""Text of floating-point numbers as Java writes it, which is what Spark's partition folders contain.

Java 19 changed `Double.toString` and `Float.toString` to the shortest text that reads back the same. Earlier
versions often write one digit more (`2.0E23` as `1.9999999999999998E23`), so both are here.
Source: JDK-4511638; JDK 17, `FloatingDecimal.BinaryToASCIIBuffer`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

SHORTEST_SINCE: Final = 19
"""First version of Java that writes the shortest text."""

Real = float | np.float32


class _Format(NamedTuple):
    """A binary floating-point format: bits of the fraction, smallest exponent."""

    fraction_bits: int
    least_exponent: int


_DOUBLE: Final = _Format(52, -1022)
_FLOAT: Final = _Format(23, -126)


def java_text(value: Real, java: int) -> str:
    """Return the text of a `double` (Python's `float`) or a `float` (NumPy's `float32`).

    Args:
        value: The number.
        java: Version of Java.
    """
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, float(value)) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0.0"
    size = -value if sign else value
    digits, exponent = _shortest(size) if java >= SHORTEST_SINCE else _until_java_18(size)
    digits = digits.rstrip("0") or "0"
    if -3 <= exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    if 0 <= exponent < 7:
        whole, rest = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
        return f"{sign}{whole}.{rest or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest(value: Real) -> tuple[str, int]:
    """Return the digits and the decimal exponent of the first one: the shortest, but two at least."""
    mantissa, _, exponent = np.format_float_scientific(value, unique=True, trim="-").partition("e")
    digits = mantissa.replace(".", "")
    if len(digits) > 1:
        return digits, int(exponent)
    # With one digit Java writes a second one anyway, so it takes the closest number of two digits.
    exact = Fraction(float(value))
    first = int(exponent) - (exact < Fraction(10) ** int(exponent))
    nearest = round(exact / Fraction(10) ** (first - 1))
    return str(nearest), first + len(str(nearest)) - 2


def _until_java_18(value: Real) -> tuple[str, int]:
    """Return the digits and the decimal exponent of the first one, by the algorithm before Java 19."""
    kind = _FLOAT if isinstance(value, np.float32) else _DOUBLE
    numerator, denominator = float(value).as_integer_ratio()
    exponent = math.frexp(float(value))[1] - 1
    significant = kind.fraction_bits + 1 - max(0, kind.least_exponent - exponent)
    if denominator == 1 and exponent <= _LONG - 2:
        return _whole_number(numerator, exponent, significant)
    odd = numerator // (numerator & -numerator)
    return _digit_by_digit(odd, denominator.bit_length() - 1, exponent, significant)


def _whole_number(number: int, exponent: int, significant: int) -> tuple[str, int]:
    spare = exponent - significant - 1
    dropped = int(spare * math.log10(2)) if spare > 3 else 0
    power = 10**dropped
    number = number // power + (2 * (number % power) >= power > 1)
    text = str(number)
    return text, len(text) - 1 + dropped


def _digit_by_digit(odd: int, tiny_bits: int, exponent: int, significant: int) -> tuple[str, int]:
    """Return the digits of a number by division, until the rest is within half a unit in the last place.

    Args:
        odd: Significant bits of the number, without the zeros at their end.
        tiny_bits: How many of them are below the binary point.
        exponent: Binary exponent of the first one.
        significant: Number of bits that the format keeps at this exponent.
    """
    bits = odd.bit_length()
    mantissa = odd / (1 << bits - 1)
    decimal = math.floor((mantissa - 1.5) * 0.289529654 + 0.176091259 + exponent * 0.301029995663981)
    rest5, unit5 = max(0, -decimal), max(0, decimal)
    rest2, unit2 = rest5 + tiny_bits + exponent - (bits - 1), unit5 + tiny_bits
    margin2 = rest5 + tiny_bits + exponent - significant - min(rest2, unit2)
    rest2, unit2 = rest2 - min(rest2, unit2), unit2 - min(rest2, unit2)
    if bits == 1:
        margin2 -= 1  # below a power of two the next number is half as far away
    spare = max(0, -margin2)
    rest = (odd * 5**rest5) << (rest2 + spare)
    unit = 5**unit5 << (unit2 + spare)
    margin = 5**rest5 << (margin2 + spare)
    # Java computes in int, long or its big integers; overflows of the former two are part of its results.
    need = max(bits + rest2 + spare + _bits_of_5(rest5), unit2 + spare + 1 + _bits_of_5(unit5 + 1))
    word = _INT if need < _INT else _LONG if need < _LONG else None
    ten = unit * 10

    digit, rest, margin = rest // unit, rest % unit * 10, _wrapped(margin * 10, word)
    low, high = rest < margin, _exceeds(rest + margin, ten, word)
    digits = [digit]
    if digit == 0 and not high:
        decimal -= 1
        digits = []
    if decimal < -3 or decimal >= 8:
        low = high = False
    while not low and not high:
        digit, rest, margin = rest // unit, rest % unit * 10, _wrapped(margin * 10, word)
        low, high = rest < margin, _exceeds(rest + margin, ten, word)
        if margin <= 0:
            low = high = True
        digits.append(digit)
    over = _wrapped(2 * rest - ten, word)
    text = "".join(map(str, digits))
    if high and (not low or over > 0 or (over == 0 and digits[-1] % 2)):
        text = str(int(text) + 1)
    return text, decimal + len(text) - len(digits)


_INT: Final = 32
_LONG: Final = 64


def _bits_of_5(power: int) -> int:
    return 0 if power == 0 else (5**power).bit_length() if power < 27 else 3 * power


def _wrapped(number: int, word: int | None) -> int:
    return number if word is None else (number + (1 << word - 1)) % (1 << word) - (1 << word - 1)


def _exceeds(total: int, ten: int, word: int | None) -> bool:
    return total >= ten if word is None else _wrapped(total, word) > ten
