"""The stamp `(epoch, sequence)`: the number of a committed journal entry.

It is at the same time state id, generation stamp, lease token and attempt fence.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

import msgspec

from lockgate.storage_core.errors import InvalidInputError

Count = Annotated[int, msgspec.Meta(ge=0)]
_TEXT: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class Stamp(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """An order over what the journal accepted: the greater one is the newer.

    Attributes:
        epoch: Grows with every failover and restore.
        sequence: Of the entry, from 1; goes on from one epoch into the next without a gap.
    """

    epoch: Count = 0
    sequence: Count = 0

    def __str__(self) -> str:
        """Write it as people and headers carry it: `3.512`."""
        return f"{self.epoch}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            InvalidInputError: It is no stamp.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidInputError(f"{text[:40]!r} is no stamp; one looks like 3.512: epoch, dot, sequence")
        return cls(int(match[1]), int(match[2]))
