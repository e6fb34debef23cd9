"""The stamp `(epoch, sequence)` of a committed journal entry.

A stamp serves as state id, generation stamp, lease token and attempt fence.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

import msgspec

from lockgate.storage_core.errors import InvalidInputError

Count = Annotated[int, msgspec.Meta(ge=0)]
_TEXT: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class Stamp(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """Number of a journal entry; a newer entry has a greater stamp.

    Attributes:
        epoch: Number of the epoch; every failover and restore begins a new one.
        sequence: Number of the entry from 1, without a gap across epochs.
    """

    epoch: Count = 0
    sequence: Count = 0

    def __str__(self) -> str:
        """Return the text form: `3.512`."""
        return f"{self.epoch}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form.

        Raises:
            InvalidInputError: The text is not a stamp.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidInputError(f"{text[:40]!r} is not a stamp such as 3.512 (epoch, dot, sequence)")
        return cls(int(match[1]), int(match[2]))
