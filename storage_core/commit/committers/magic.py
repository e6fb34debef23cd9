"""`magic`: files stream into uploads at their final keys, which stay open until the job commits.

Source: S3A committers, "The Magic Committer".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from lockgate.storage_core.commit.committers.protocol import Place, Uploads, VisibleAt
from lockgate.storage_core.commit.records.job import PendingFile, Scope


@dataclass(frozen=True)
class MagicCommitter:
    """Streams; needs no disk."""

    name: str = "magic"
    uncommitted: str = "open uploads at the final key"
    use: str = "default for writers that stream"
    visible_at: VisibleAt = "job commit"
    repeatable: bool = True
    recovers_tasks: bool = True
    place: Place = "any store"
    scope: Scope = "destination"
    safe: bool = True
    merges: bool = False

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open an upload at the final key."""
        return uploads.open_upload(path)  # type: ignore[return-value]

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Do nothing: the upload waits for the job."""

    def before_task_commit(self, uploads: Uploads) -> None:
        """Do nothing: the files are uploads already."""

    def after_task_commit(self, uploads: Uploads) -> None:
        """Do nothing: the uploads wait for the job."""
