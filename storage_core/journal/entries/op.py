"""The base class of entries, and the events that a family announces in a fold so that others can react."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from lockgate.storage_core.journal.entries.state import Key, Span, State
from lockgate.storage_core.stamp import Stamp


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a resource, within the fold of an entry.

    Attributes:
        resource: Name of the resource, as in its lease: `job:<destination>#<job id>`, …
    """

    resource: str


class ResourceEnded(Event, frozen=True):
    """The resource has ended, so nothing needs to be kept for it."""


class ResourceUsed(Event, frozen=True):
    """Something is bound to the resource and will be deleted with it.

    The resource's family raises an error if the resource has ended.

    Attributes:
        what: Description of what is bound, for messages.
    """

    what: str


class ArtefactsTaken(Event, frozen=True):
    """The resource takes artefacts that another family keeps.

    The family that keeps them raises an error if one of them is gone.

    Attributes:
        owner: Name under which they were uploaded.
        keys: Their keys.
    """

    owner: str
    keys: tuple[str, ...]


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
