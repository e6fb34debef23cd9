"""Committers by name. Each decides where uncommitted data wait; one commit engine serves all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lockgate.storage_core.commit.committers.committer import Committer, DirectCommitter, MagicCommitter
from lockgate.storage_core.commit.committers.staging import FileV1Committer, FileV2Committer, StagingCommitter
from lockgate.storage_core.commit.records.job_record import JobSpec
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.settings import Settings

COMMITTERS: Final[Mapping[str, Committer]] = {
    committer.name: committer
    for committer in (
        MagicCommitter(),
        StagingCommitter(),
        # Replaces only partitions that receive data: S3A committers, "The Partitioned Staging Committer".
        StagingCommitter(name="partitioned", use="updating partitions of a table", scope="partitions"),
        FileV1Committer(),
        FileV2Committer(),
        DirectCommitter(),
    )
}


def get_committer(name: str) -> Committer:
    """Return a committer by its name.

    Raises:
        InvalidInputError: The name is unknown; the message lists the known ones.
    """
    try:
        return COMMITTERS[name]
    except KeyError:
        raise InvalidInputError(
            f"committer {name!r} is not known; use one of {', '.join(COMMITTERS)}"
        ) from None


def is_visible_early(spec: JobSpec) -> bool:
    """Return whether a job's files may be visible before it commits."""
    return get_committer(spec.committer).visible_at != "job commit"


def configured_committer(destination: str, settings: Settings, default: str) -> str:
    """Return the committer for a destination: from the settings, by longest matching prefix, or the default.

    Args:
        destination: URL as `parse_destination` writes it.
        settings: Settings whose `committers` (by prefix) and `committer` (for the rest) are used.
        default: Committer to use if the settings name none.
    """
    prefixes: dict[str, str] = {}
    for prefix, name in settings.committers.items():
        prefixes.setdefault(prefix.rstrip("/"), name)
    matching = [prefix for prefix in prefixes if f"{destination}/".startswith(f"{prefix}/")]
    return prefixes[max(matching, key=len)] if matching else settings.committer or default


__all__ = ["COMMITTERS", "Committer", "configured_committer", "get_committer", "is_visible_early"]
