"""`staging`: files are real files in a staging directory, and become uploads when their task commits.

For writers that must seek or rename, and for rows that are audited before anything is uploaded.
Source: S3A committers, "The Staging Committer".
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.commit.committers.base_file import RealFilesCommitter
from lockgate.storage_core.commit.committers.protocol import Place


@dataclass(frozen=True)
class StagingCommitter(RealFilesCommitter):
    """Writes to disk first."""

    name: str = "staging"
    uncommitted: str = "files in a staging directory, uploaded at task commit"
    use: str = "default in the DAG: any writer, audits of the rows"
    place: Place = "any store"
