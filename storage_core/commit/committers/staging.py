"""`staging`: files are real files in a staging directory, and become uploads when their task commits.

For writers that must seek or rename, and for rows that are audited before anything is uploaded.
Source: S3A committers, "The Staging Committer".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from lockgate.storage_core.commit.committers.base_file import add_files, open_file
from lockgate.storage_core.commit.committers.protocol import Place, Uploads, VisibleAt
from lockgate.storage_core.commit.records.job import PendingFile, Scope


@dataclass(frozen=True)
class StagingCommitter:
    """Writes to disk first."""

    name: str = "staging"
    uncommitted: str = "files in a staging directory, uploaded at task commit"
    use: str = "default in the DAG: any writer, audits of the rows"
    visible_at: VisibleAt = "job commit"
    repeatable: bool = True
    recovers_tasks: bool = True
    place: Place = "any store"
    scope: Scope = "destination"
    safe: bool = True
    merges: bool = False

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open a file in the attempt's staging directory; it can be sought in."""
        return open_file(uploads.staging_dir, path)

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Do nothing: the upload waits for the job."""

    def before_task_commit(self, uploads: Uploads) -> None:
        """Upload every file of the attempt's staging directory."""
        add_files(uploads, uploads.staging_dir)

    def after_task_commit(self, uploads: Uploads) -> None:
        """Do nothing: the uploads wait for the job."""
