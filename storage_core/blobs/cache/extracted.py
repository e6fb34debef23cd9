"""Unpacked archives of a cache: `<job id>/<blob key>/`, with `files` and their `size` in bytes.

A folder is complete or absent: it has another name while it is filled or removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.keys import BlobKey, check_blob_job, check_blob_key, is_blob_key
from lockgate.storage_core.ids import new_token

FILES: Final = "files"
SIZE: Final = "size"

Unpack = Callable[[Path], int]
"""Unpacks into a new folder, and returns the size in bytes."""


class UnpackedBlobs:
    """Unpacked archives, a folder for each blob, which the caller locks while it fills or drops it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return the folder for the files of a blob."""
        return self._folder(job_id, blob_key) / FILES

    def fill(self, job_id: str, blob_key: BlobKey, unpack: Unpack) -> int:
        """Unpack a blob, and return the size in bytes."""
        folder = self._folder(job_id, blob_key)
        building = _temporary_name(folder)
        try:
            (building / FILES).mkdir(mode=0o700, parents=True)
            size_bytes = unpack(building / FILES)
            (building / SIZE).write_text(str(size_bytes))
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return size_bytes

    def sizes(self, job_id: str) -> Iterator[tuple[BlobKey, int]]:
        """Yield the unpacked blobs of a job with their sizes in bytes."""
        for path in (self.path / check_blob_job(job_id)).glob(f"*/{SIZE}"):
            if is_blob_key(path.parent.name):
                with suppress(FileNotFoundError, ValueError):  # just dropped, or truncated by a power failure
                    yield BlobKey(path.parent.name), int(path.read_text())

    def drop(self, job_id: str, blob_key: BlobKey) -> None:
        """Remove the files of a blob, and what a killed process left of them."""
        folder = self._folder(job_id, blob_key)
        for path in folder.parent.glob(f"{folder.name}*"):
            remove_atomically(path)

    def drop_job(self, job_id: str) -> None:
        """Remove the files of all blobs of a job."""
        remove_atomically(self.path / check_blob_job(job_id))

    def _folder(self, job_id: str, blob_key: BlobKey) -> Path:
        return self.path / check_blob_job(job_id) / check_blob_key(blob_key)


def remove_atomically(folder: Path) -> None:
    """Remove a folder; even if this process is killed, no part of it remains under its name."""
    removed = _temporary_name(folder)
    with suppress(FileNotFoundError):
        folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _temporary_name(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.{new_token()}")
