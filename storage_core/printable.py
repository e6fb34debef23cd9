"""Text that was read back, made safe to show: names and messages may hold what a terminal obeys."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""Return the text with every control, format and line-break character written out, as in `\x1b`.

    So a name in a store can neither move the cursor, nor set a title, nor turn the direction of writing, nor
    begin a line that this program never wrote.
    """
    if text.isprintable():
        return text
    return "".join(letter if _is_shown(letter) else _written_out(letter) for letter in text)


def _is_shown(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category[0] != "C" and category not in {"Zl", "Zp"}


def _written_out(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")
