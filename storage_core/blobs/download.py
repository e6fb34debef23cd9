"""Download a blob into a file: it is verified first, then moved into place."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.protocol import Blobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import Progress, no_progress
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.stores.os_errors import translated


def fetch_file(
    blobs: Blobs, job_id: str, blob_key: BlobKey, output: Path | None, *, progress: Progress = no_progress
) -> Path:
    """Fetch a complete blob into a file and return its path; on an error the file is unchanged.

    Args:
        blobs: Blob server.
        job_id: Job of the blob.
        blob_key: Key of the blob.
        output: File to write or replace; None: a new file in the working directory with the blob's name.
        progress: Called with the bytes received.

    Raises:
        InvalidInputError: The directory does not exist, or the blob's name is taken; nothing was fetched.
        ObjectNotFoundError: There is no such blob.
        CorruptBlobError: Every copy of it is damaged.
    """
    # Rows are paged by key, so this page starts with the blob itself.
    rows = [row for row in blobs.page(job_id, after=(job_id, _before(blob_key))) if row.blob_key == blob_key]
    target = output or _default_target(rows[0].name if rows else "", blob_key)
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target.parent}: there is no such directory; nothing was fetched")
    size_bytes = rows[0].size_bytes if rows else 0
    with (
        translated("write", str(target), changes=True),
        tempfile.TemporaryDirectory(prefix=".lockgate-", dir=target.parent) as folder,
    ):
        temporary = LocalBlobs(Path(folder), on_bytes=lambda done: progress("download", done, size_bytes))
        blobs.fetch(temporary, job_id, blob_key).replace(target)
    return target


def _before(blob_key: BlobKey) -> str:
    """Return a text that sorts before a key; only keys that share all but the last digit lie between."""
    return blob_key[:-1]


def _default_target(name: str, blob_key: BlobKey) -> Path:
    target = Path(Path(name).name or blob_key)
    if target.exists():
        raise InvalidInputError(f"{target} is there already; nothing was fetched; name a file with --output")
    return target
