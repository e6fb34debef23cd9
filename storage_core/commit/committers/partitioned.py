"""`partitioned`: `staging`, with conflicts by partition: only partitions that receive data are replaced.

Source: S3A committers, "The Partitioned Staging Committer".
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.storage_core.commit.committers.staging import StagingCommitter
from lockgate.storage_core.commit.records.job import ScopeName


@dataclass(frozen=True, kw_only=True)
class PartitionedCommitter(StagingCommitter):
    """Writes to disk first; updates partitions of a table."""

    name: str = "partitioned"
    use: str = "updating partitions of a table"
    scope: ScopeName = "partitions"
