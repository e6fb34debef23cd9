"""`staging`: files are real files in a staging directory and become uploads when their task commits.

Suits writers that seek or rename, and rows that are audited before anything is uploaded.
Source: S3A committers, "The Staging Committer".
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.commit.committers.base_file import BaseFileCommitter


@dataclass(frozen=True, kw_only=True)
class StagingCommitter(BaseFileCommitter):
    """Writes to disk first, then uploads."""

    name: str = "staging"
    uncommitted: str = "files in a staging directory, uploaded at task commit"
    use: str = "default in the DAG: any writer, audits of the rows"
