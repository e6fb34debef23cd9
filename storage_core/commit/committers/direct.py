"""`direct`: files are seen as soon as they are closed. For comparison only.

The job still ends whole or not at all, and readers of the log see nothing else; but a reader that lists sees
every file at once, also those of attempts that will not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.commit.committers.magic import MagicCommitter
from lockgate.storage_core.commit.committers.protocol import Uploads, VisibleAt
from lockgate.storage_core.commit.records.job import PendingFile


@dataclass(frozen=True)
class DirectCommitter(MagicCommitter):
    """Streams, and shows each file when it is closed."""

    name: str = "direct"
    uncommitted: str = "the final key"
    use: str = "comparison only; wants allow_unsafe=True"
    visible_at: VisibleAt = "close"
    repeatable: bool = False
    safe: bool = False

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Show the file."""
        uploads.show([file])
