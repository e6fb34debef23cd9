"""What an entry says, and how it folds into the tables."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from lockgate.storage_core.journal.entries.events import Event
from lockgate.storage_core.journal.entries.state import Key, Span, State
from lockgate.storage_core.stamp import Stamp


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """When an entry is accepted.

    Attributes:
        stamp: The entry's number.
        at_s: By the database's clock, after the head was locked.
        is_safe_mode: Whether nothing may be reaped or deleted.
    """

    stamp: Stamp
    at_s: float
    is_safe_mode: bool = False


class _AbstractStruct(msgspec.StructMeta, ABCMeta):
    """Structs that leave something to their subclasses."""


class Op(
    msgspec.Struct,
    metaclass=_AbstractStruct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="op",
):
    """One mutation of the tables. A subclass a kind of entry; its tag is the entry's name.

    A fold is a pure function of the state and the moment: replaying entries gives the same tables again. A
    mutation is refused by raising a `LockgateError` out of `fold`; then it has had no effect.

    Attributes:
        RESULT: The type of what `fold` returns, and a repeated request returns again.
    """

    RESULT: ClassVar[Any] = type(None)

    def touches(self) -> Iterable[Key]:
        """Name the rows that the fold will ask for: they are read together, for a whole group."""
        return ()

    def spans(self) -> Iterable[Span]:
        """Name what the fold will ask for by the beginning of a key: read together, too."""
        return ()

    def announces(self) -> Iterable[Event]:
        """Name the events that the fold may announce: what reactions ask for is read together, too."""
        return ()

    @abstractmethod
    def fold(self, state: State, moment: Moment) -> Any:
        """Apply it.

        Raises:
            LockgateError: It is refused, in these tables.
        """
