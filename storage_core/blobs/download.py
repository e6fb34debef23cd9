"""A blob fetched into a file of any name: verified first, then moved into place."""

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
    """Fetch a blob into a file, whole or not at all; returns its path.

    Args:
        blobs: From which.
        job_id: Of the blob.
        blob_key: Of the blob.
        output: The file, which is replaced; None: the name that the blob was put with, in this directory,
            where nothing of that name is.
        progress: Hears of the bytes.

    Raises:
        InvalidInputError: The directory is not there, or the blob's own name is taken; nothing was fetched.
        ObjectNotFoundError: There is no such blob.
        CorruptBlobError: Every copy of it is damaged.
    """
    # Rows are asked by job, so the page begins with the blob itself.
    known = [one for one in blobs.page(job_id, after=(job_id, _before(blob_key))) if one.blob_key == blob_key]
    target = output or _own_name(known[0].name if known else "", blob_key)
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target.parent}: there is no such directory; nothing was fetched")
    size_bytes = known[0].size_bytes if known else 0
    with (
        translated("write", str(target), changes=True),
        tempfile.TemporaryDirectory(prefix=".lockgate-", dir=target.parent) as folder,
    ):
        beside = LocalBlobs(Path(folder), heard=lambda done: progress("download", done, size_bytes))
        blobs.fetch(beside, job_id, blob_key).replace(target)
    return target


def _before(blob_key: BlobKey) -> str:
    """Return a text that is before a key and after every smaller one of its length."""
    return blob_key[:-1]


def _own_name(name: str, blob_key: BlobKey) -> Path:
    target = Path(Path(name).name or blob_key)
    if target.exists():
        raise InvalidInputError(f"{target} is there already; nothing was fetched; name a file with --output")
    return target
