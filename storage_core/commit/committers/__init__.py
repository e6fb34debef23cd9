"""Where uncommitted data wait: one file a committer, over one commit engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from storage_core.commit.committers.magic import MagicCommitter
from storage_core.commit.committers.protocol import Committer
from storage_core.commit.committers.staging import StagingCommitter
from storage_core.errors import InvalidInputError

COMMITTERS: Final[Mapping[str, Committer]] = {
    committer.name: committer for committer in (MagicCommitter(), StagingCommitter())
}


def committer_named(name: str) -> Committer:
    """Return a committer by its name.

    Raises:
        InvalidInputError: There is none of this name; the message lists those that there are.
    """
    try:
        return COMMITTERS[name]
    except KeyError:
        raise InvalidInputError(
            f"committer {name!r} is not known; use one of {', '.join(COMMITTERS)}"
        ) from None


__all__ = ["COMMITTERS", "Committer", "committer_named"]
