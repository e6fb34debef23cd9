"""`magic` and `direct`: files are streamed into uploads at their final keys.

For `direct`, readers of the log still see the whole job or nothing; a reader that lists the destination sees
every file at once, including those of attempts that are not selected.
Source: S3A committers, "The Magic Committer".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from lockgate.storage_core.commit.committers.committer import Committer, Uploads, VisibleAt
from lockgate.storage_core.commit.records.pending_set import PendingFile


@dataclass(frozen=True, kw_only=True)
class MagicCommitter(Committer):
    """Streams files; needs no disk."""

    name: str = "magic"
    uncommitted: str = "open uploads at the final key"
    use: str = "default for writers that stream"

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open an upload at the final key."""
        return uploads.open_upload(path)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class DirectCommitter(MagicCommitter):
    """Streams files and publishes each when it is closed."""

    name: str = "direct"
    uncommitted: str = "the final key"
    use: str = "comparison only; wants allow_unsafe=True"
    visible_at: VisibleAt = "close"
    safe: bool = False

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Publish the file."""
        uploads.publish_early([file])
