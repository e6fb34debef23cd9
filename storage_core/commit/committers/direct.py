"""`direct`: files become visible as soon as they are closed. For comparison only.

Readers of the log still see the whole job or nothing. A reader that lists the destination sees every file at
once, including those of attempts that are not selected.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.commit.committers.magic import MagicCommitter
from lockgate.storage_core.commit.committers.protocol import Uploads, VisibleAt
from lockgate.storage_core.commit.records.pending_set import PendingFile


@dataclass(frozen=True, kw_only=True)
class DirectCommitter(MagicCommitter):
    """Streams files and publishes each when it is closed."""

    name: str = "direct"
    uncommitted: str = "the final key"
    use: str = "comparison only; wants allow_unsafe=True"
    visible_at: VisibleAt = "close"
    repeatable: bool = False
    safe: bool = False

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Publish the file."""
        uploads.publish_early([file])
