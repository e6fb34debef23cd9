"""`file-v1`: files are real files inside the destination, and get their final names when the job commits.

A rename is a new name first and the loss of the old one after it: no byte is copied, nothing is overwritten.
In `replace`, an old file whose name the job needs for a folder makes way, and the reverse: it is moved aside
when the job is decided, and until the outcome stands readers of the log may miss it too.
Source: Hadoop's FileOutputCommitter, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from lockgate.storage_core.commit.committers.base_file import add_files, open_file
from lockgate.storage_core.commit.committers.protocol import Place, Uploads, VisibleAt
from lockgate.storage_core.commit.records.job import PendingFile, Scope


@dataclass(frozen=True)
class FileV1Committer:
    """Writes into `_temporary/`; takes finished files as they lie."""

    name: str = "file-v1"
    uncommitted: str = "_temporary/<job>/<job attempt>/<task>/<attempt> in the destination"
    use: str = "local disks and NFS: any writer, large files without a copy"
    visible_at: VisibleAt = "job commit"
    repeatable: bool = True
    recovers_tasks: bool = True
    place: Place = "file systems"
    scope: Scope = "destination"
    safe: bool = True
    merges: bool = True

    def open(self, uploads: Uploads, path: str) -> BinaryIO:
        """Open a file in the attempt's temporary directory; it can be sought in."""
        return open_file(uploads.temporary_dir, path)

    def after_close(self, uploads: Uploads, file: PendingFile) -> None:
        """Do nothing: the upload waits for the job."""

    def before_task_commit(self, uploads: Uploads) -> None:
        """Take every file of the attempt's temporary directory."""
        add_files(uploads, uploads.temporary_dir)

    def after_task_commit(self, uploads: Uploads) -> None:
        """Do nothing: the uploads wait for the job."""
