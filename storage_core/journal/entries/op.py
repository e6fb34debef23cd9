"""The base class of entries."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from lockgate.storage_core.journal.entries.events import Event
from lockgate.storage_core.journal.entries.state import Key, Span, State
from lockgate.storage_core.stamp import Stamp


class Moment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The context in which an entry is accepted.

    Attributes:
        stamp: Stamp of the entry.
        at_s: Time of the database's clock, after the head was locked.
        is_safe_mode: Whether the journal is in safe mode.
    """

    stamp: Stamp
    at_s: float
    is_safe_mode: bool = False


class _AbstractStruct(msgspec.StructMeta, ABCMeta):
    """Metaclass of structs with abstract methods."""


class Op(
    msgspec.Struct,
    metaclass=_AbstractStruct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    gc=False,  # nothing in an entry is part of a cycle
    tag_field="op",
):
    """One mutation of the tables. Each subclass is a kind of entry; its tag is the entry's name.

    A fold is a pure function of the state and the moment, so that a replay gives the same tables. It refuses
    the mutation by raising a `LockgateError`; then the mutation has no effect.

    Attributes:
        RESULT: Return type of `fold`; a repeated request returns the stored result.
    """

    RESULT: ClassVar[Any] = type(None)

    def touches(self) -> Iterable[Key]:
        """Return the keys of the rows that the fold reads. They are loaded together for a whole group."""
        return ()

    def spans(self) -> Iterable[Span]:
        """Return the spans whose rows the fold reads. They are loaded together, too."""
        return ()

    def announces(self) -> Iterable[Event]:
        """Return the events that the fold may announce. Rows of the reactions are loaded together, too."""
        return ()

    @abstractmethod
    def fold(self, state: State, moment: Moment) -> Any:
        """Apply the mutation to the state and return its result.

        Raises:
            LockgateError: The state does not allow it.
        """
