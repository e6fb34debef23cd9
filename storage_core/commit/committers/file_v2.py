"""`file-v2`: like `file-v1`, but a task's files are visible in listings as soon as the task has committed.

A task commit that dies half-way leaves some of its files visible, and so does a job until it has ended.
Readers of the log still see whole jobs only.
Source: Hadoop's FileOutputCommitter, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.commit.committers.committer import Uploads, VisibleAt
from lockgate.storage_core.commit.committers.file_v1 import FileV1Committer


@dataclass(frozen=True, kw_only=True)
class FileV2Committer(FileV1Committer):
    """Publishes files at the task commit."""

    name: str = "file-v2"
    use: str = "comparison, and users who know"
    visible_at: VisibleAt = "task commit"
    repeatable: bool = False
    merges: bool = False  # files are visible before the plan can name the files to displace

    def after_task_commit(self, uploads: Uploads) -> None:
        """Publish the task's files."""
        uploads.publish_early(uploads.files)
