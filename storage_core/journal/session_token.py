"""Tokens: what a client has seen of each journal, as text that travels with what it tells others.

    main=3.512,logs=1.9

Whoever is told of something reads at least the state in which it was so. A journal stands there twice while
a failover lies between two stamps that were seen and no reading has shown yet that the older one survived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, Self

import msgspec

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stamp import Stamp

CARRIED_AS: Final = "lockgate-at-least"
"""The name under which a token travels: an HTTP header, a header of a Celery task, a key of an XCom value."""

_NAME: Final = re.compile(r"[^\s=,]{1,120}")


class Token(msgspec.Struct, frozen=True):
    """The stamps that a reader must not fall behind, by journal; merging only adds to them.

    Attributes:
        stamps: Oldest first, at most one an epoch.
    """

    stamps: Mapping[str, tuple[Stamp, ...]] = {}

    def __str__(self) -> str:
        """Write it as it travels."""
        return ",".join(
            f"{journal}={stamp}" for journal, stamps in sorted(self.stamps.items()) for stamp in stamps
        )

    @classmethod
    def of(cls, journal: str, stamps: Iterable[Stamp]) -> Self:
        """Return the token of one journal.

        Args:
            journal: Its name.
            stamps: In any order; of one epoch the newest counts.
        """
        newest: dict[int, Stamp] = {}
        for stamp in stamps:
            newest[stamp.epoch] = max(stamp, newest.get(stamp.epoch, stamp))
        return cls({journal: tuple(sorted(newest.values()))} if newest else {})

    @classmethod
    def parse(cls, text: str, journal: str | None = None) -> Self:
        """Read what `str` wrote.

        Args:
            text: An empty one is a token that asks for nothing.
            journal: A stamp without a name is this journal's: `--at-least 3.512`.

        Raises:
            InvalidInputError: It is no token.
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

    def merged(self, other: Token) -> Self:
        """Return the token of whoever has seen what either has."""
        merged = dict(self.stamps)
        for journal, stamps in other.stamps.items():
            merged.update(type(self).of(journal, (*merged.get(journal, ()), *stamps)).stamps)
        return type(self)(merged)

    def for_journal(self, journal: str) -> tuple[Stamp, ...]:
        """Return what it asks of one journal."""
        return self.stamps.get(journal, ())


def carry(token: Token, headers: MutableMapping[str, Any]) -> None:
    """Put a token among headers, or into an XCom value; it takes the place of none that is newer.

    Raises:
        InvalidInputError: What stands there already is no token.
    """
    merged = carried(headers).merged(token)
    for name in _names(headers):
        del headers[name]
    headers[CARRIED_AS] = str(merged)


def carried(headers: Mapping[str, Any]) -> Token:
    """Take a token from headers or from an XCom value, whatever the case of its name; empty if there is none.

    Raises:
        InvalidInputError: What stands there is no token.
    """
    token = Token()
    for name in _names(headers):
        token = token.merged(Token.parse(str(headers[name])))
    return token


def _names(headers: Mapping[str, Any]) -> list[str]:
    return [name for name in headers if str(name).lower().replace("_", "-") == CARRIED_AS]
