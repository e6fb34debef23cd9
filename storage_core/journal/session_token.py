"""Session tokens: the stamps that a process has seen of each journal, as text for a message.

    main=3.512,logs=1.9

The receiver then reads states at least as new. A journal appears twice if stamps from before and after a
failover were seen and no read has yet shown that the older one survived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stamp import Stamp

AT_LEAST_HEADER: Final = "lockgate-at-least"
"""Name of the token in a message: an HTTP header, a header of a Celery task, a key of an XCom value."""

_NAME: Final = re.compile(r"[^\s=,]{1,120}")


class SessionToken(msgspec.Struct, frozen=True):
    """The stamps that a reader must not fall behind, by journal.

    Attributes:
        stamps: Oldest first, at most one for each epoch.
    """

    stamps: Mapping[str, tuple[Stamp, ...]] = {}

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return ",".join(
            f"{journal}={stamp}" for journal, stamps in sorted(self.stamps.items()) for stamp in stamps
        )

    @classmethod
    def of(cls, journal: str, stamps: Iterable[Stamp]) -> Self:
        """Return the token of one journal."""
        newest: dict[int, Stamp] = {}
        for stamp in stamps:
            newest[stamp.epoch] = max(stamp, newest.get(stamp.epoch, stamp))
        return cls({journal: tuple(sorted(newest.values()))} if newest else {})

    @classmethod
    def parse(cls, text: str, journal: str | None = None) -> Self:
        """Return the token of a text.

        Args:
            text: The token; may be empty.
            journal: Journal of a stamp without a name: `--at-least 3.512`.

        Raises:
            InvalidInputError: The text is not a token.
        """
        token = cls()
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, stamp = part.rpartition("=")
            if not equals and journal is not None:
                name = journal
            if not _NAME.fullmatch(name):
                raise InvalidInputError(
                    f"{part[:140]!r} is no part of a token; one looks like main=3.512: journal, =, stamp"
                )
            token = token.merged(cls.of(name, [Stamp.parse(stamp)]))
        return token

    @classmethod
    def from_headers(cls, headers: Mapping[str, Any]) -> Self:
        """Return the token in headers or in an XCom value, empty if there is none; ignore the name's case.

        Raises:
            InvalidInputError: The value is not a token.
        """
        token = cls()
        for name, value in headers.items():
            if str(name).lower().replace("_", "-") == AT_LEAST_HEADER:
                token = token.merged(cls.parse(str(value)))
        return token

    def merged(self, other: SessionToken) -> Self:
        """Return the token with the stamps of both."""
        merged = dict(self.stamps)
        for journal, stamps in other.stamps.items():
            merged.update(type(self).of(journal, (*merged.get(journal, ()), *stamps)).stamps)
        return type(self)(merged)

    def for_journal(self, journal: str) -> tuple[Stamp, ...]:
        """Return the stamps of one journal."""
        return self.stamps.get(journal, ())
