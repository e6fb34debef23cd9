"""Events: what one family announces in a fold, for the families that it does not know."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a resource, within the fold of an entry.

    Attributes:
        resource: Name of the resource, the same that its lease is on: `job:<destination>#<job id>`, …
    """

    resource: str


class ResourceEnded(Event, frozen=True):
    """The resource has ended: what was kept for it is kept no longer."""


class DriverReplaced(Event, frozen=True):
    """A new driver works on the resource: the one before it has failed."""


class ResourceUsed(Event, frozen=True):
    """Something is bound to the resource, and will go with it.

    The family that the resource belongs to refuses this, by raising an error, if the resource has ended.

    Attributes:
        what: What is bound, for people.
    """

    what: str


class ArtefactsTaken(Event, frozen=True):
    """The resource takes artefacts that another family keeps.

    The family that keeps them refuses this, by raising an error, if one of them is gone.

    Attributes:
        owner: Name under which they were uploaded.
        keys: Their keys.
    """

    owner: str
    keys: tuple[str, ...]
