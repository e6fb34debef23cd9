"""Escape control characters in text from outside, which a terminal would interpret."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""Return the text with every control, format and line-break character escaped, as in `\x1b`.

    A name in a store can then neither move the cursor, set a title, change the writing direction, nor forge a
    line of output.
    """
    if text.isprintable():
        return text
    return "".join(_escape(letter) if _is_unsafe(letter) else letter for letter in text)


def _is_unsafe(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category[0] == "C" or category in {"Zl", "Zp"}


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")
