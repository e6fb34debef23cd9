"""Events that one family announces in a fold, so that other families can react."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a resource, within the fold of an entry.

    Attributes:
        resource: Name of the resource, as in its lease: `job:<destination>#<job id>`, …
    """

    resource: str


class ResourceEnded(Event, frozen=True):
    """The resource has ended, so nothing needs to be kept for it."""


class DriverReplaced(Event, frozen=True):
    """A new driver works on the resource: the one before it has failed."""


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
