"""`file-v2`: as `file-v1`, but readers that list see a task's files as soon as it has committed.

A task commit that dies half-way shows a part of it, and so does a job until it has ended. Readers of the log
see whole jobs all the same.
Source: Hadoop's FileOutputCommitter, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.commit.committers.file_v1 import FileV1Committer
from lockgate.storage_core.commit.committers.protocol import Uploads, VisibleAt


@dataclass(frozen=True)
class FileV2Committer(FileV1Committer):
    """Shows files at the task commit."""

    name: str = "file-v2"
    use: str = "comparison, and users who know"
    visible_at: VisibleAt = "task commit"
    repeatable: bool = False
    merges: bool = False  # files are shown before the plan can say what makes way

    def after_task_commit(self, uploads: Uploads) -> None:
        """Show the task's files."""
        uploads.show(uploads.files)
