"""`file-v1`: files are real files inside the destination, and get their final names when the job commits.

A rename is a new name first and the loss of the old one after it: no byte is copied, nothing is overwritten.
In `replace`, an old file whose name the job needs for a folder makes way, and the reverse: it is moved aside
when the job is decided, and until the outcome stands readers of the log may miss it too.
Source: Hadoop's FileOutputCommitter, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockgate.storage_core.commit.committers.base_file import RealFilesCommitter
from lockgate.storage_core.commit.committers.protocol import Place, Uploads


@dataclass(frozen=True)
class FileV1Committer(RealFilesCommitter):
    """Writes into `_temporary/`; takes finished files as they lie."""

    name: str = "file-v1"
    uncommitted: str = "_temporary/<job>/<job attempt>/<task>/<attempt> in the destination"
    use: str = "local disks and NFS: any writer, large files without a copy"
    place: Place = "file systems"
    merges: bool = True

    def directory(self, uploads: Uploads) -> Path:
        """Return the attempt's temporary directory."""
        return uploads.temporary_dir
