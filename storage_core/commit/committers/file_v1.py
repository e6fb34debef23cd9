"""`file-v1`: files are real files inside the destination and get their final names when the job commits.

A rename links the new name, then unlinks the old one: no byte is copied, nothing is overwritten. In
`replace`, an old file is displaced if the job needs its name for a folder, or the reverse. This happens when
the job is decided; until the outcome is written, readers of the log may miss the file.
Source: Hadoop's FileOutputCommitter, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockgate.storage_core.commit.committers.committer import Place, Uploads
from lockgate.storage_core.commit.committers.staging import StagingCommitter


@dataclass(frozen=True, kw_only=True)
class FileV1Committer(StagingCommitter):
    """Writes into `_temporary/`; takes finished files without copying them."""

    name: str = "file-v1"
    uncommitted: str = "_temporary/<job>/<job attempt>/<task>/<attempt> in the destination"
    use: str = "local disks and NFS: any writer, large files without a copy"
    place: Place = "file systems"
    merges: bool = True
    file_mode: int = 0o666  # the same file becomes visible

    def directory(self, uploads: Uploads) -> Path:
        """Return the attempt's temporary directory."""
        return uploads.temporary_dir
