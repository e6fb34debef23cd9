"""Where uncommitted data wait: one file a committer, over one commit engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lockgate.storage_core.commit.committers.direct import DirectCommitter
from lockgate.storage_core.commit.committers.file_v1 import FileV1Committer
from lockgate.storage_core.commit.committers.file_v2 import FileV2Committer
from lockgate.storage_core.commit.committers.magic import MagicCommitter
from lockgate.storage_core.commit.committers.partitioned import PartitionedCommitter
from lockgate.storage_core.commit.committers.protocol import Committer
from lockgate.storage_core.commit.committers.staging import StagingCommitter
from lockgate.storage_core.commit.records.job import JobSpec
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings

COMMITTERS: Final[Mapping[str, Committer]] = {
    committer.name: committer
    for committer in (
        MagicCommitter(),
        StagingCommitter(),
        PartitionedCommitter(),
        FileV1Committer(),
        FileV2Committer(),
        DirectCommitter(),
    )
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


def shows_early(spec: JobSpec) -> bool:
    """Tell whether a job's files may be seen before it commits."""
    return committer_named(spec.committer).visible_at != "job commit"


def configured_committer(destination: str, settings: Settings, default: str) -> str:
    """Return the committer that the settings name for a destination, else for all, else the default.

    Of several prefixes in `LOCKGATE_COMMITTERS` under which the destination lies, the longest counts.

    Args:
        destination: As `parse_destination` writes it.
        settings: `committer` and `committers` count.
        default: Where the settings name none.
    """
    under = [
        prefix.rstrip("/")
        for prefix in settings.committers
        if f"{destination}/".startswith(f"{prefix.rstrip('/')}/")
    ]
    if under:
        chosen = max(under, key=len)
        return next(name for prefix, name in settings.committers.items() if prefix.rstrip("/") == chosen)
    return settings.committer or default


__all__ = ["COMMITTERS", "Committer", "committer_named", "configured_committer", "shows_early"]
