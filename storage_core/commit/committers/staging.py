"""`staging`: files are real files in a staging directory, and become uploads when their task commits.

For writers that must seek or rename, and for rows that are audited before anything is uploaded.
Source: S3A committers, "The Staging Committer".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from storage_core.commit.committers.protocol import Place, Uploads, VisibleAt
from storage_core.commit.records import Scope
from storage_core.stores.protocol import check_key


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

    def open(self, uploads: Uploads, path: str, content_type: str | None) -> BinaryIO:  # noqa: ARG002
        """Open a file in the attempt's staging directory; it can be sought in."""
        target = uploads.staging_dir / check_key(path)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return target.open("xb")

    def before_task_commit(self, uploads: Uploads) -> None:
        """Upload every file of the attempt's staging directory."""
        root = uploads.staging_dir
        for local in sorted(path for path in root.rglob("*") if path.is_file()):
            uploads.add_file(local, local.relative_to(root).as_posix())

    def after_task_commit(self, uploads: Uploads) -> None:
        """Do nothing: the uploads wait for the job."""
