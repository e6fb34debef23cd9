"""What was unpacked of a cache's blobs: `<job id>/<blob key>/`, with `files` and their `size` in bytes.

It is there whole or not at all: made beside, then renamed; renamed, then removed.
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
"""Fills a new folder; returns how many bytes that took."""


class UnpackedBlobs:
    """Folders of files, a blob each. Whoever fills or drops one holds what keeps others from it.

    Args:
        path: Of the folder of them all, which the first one makes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self, job_id: str, blob_key: BlobKey) -> Path:
        """Return the folder with what was unpacked of a blob, or will be."""
        return self._folder(job_id, blob_key) / FILES

    def fill(self, job_id: str, blob_key: BlobKey, unpack: Unpack) -> int:
        """Unpack a blob; returns how many bytes that took."""
        folder = self._folder(job_id, blob_key)
        building = _beside(folder)
        try:
            (building / FILES).mkdir(mode=0o700, parents=True)
            size_bytes = unpack(building / FILES)
            (building / SIZE).write_text(str(size_bytes))
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return size_bytes

    def sizes(self, job_id: str) -> Iterator[tuple[BlobKey, int]]:
        """Yield the blobs of a job that are unpacked, and how many bytes that takes."""
        for path in (self.path / check_blob_job(job_id)).glob(f"*/{SIZE}"):
            if is_blob_key(path.parent.name):
                with suppress(FileNotFoundError, ValueError):  # just dropped, or cut off as the machine died
                    yield BlobKey(path.parent.name), int(path.read_text())

    def drop(self, job_id: str, blob_key: BlobKey) -> None:
        """Remove what was unpacked of a blob, and what a process has left of it that died amid that."""
        folder = self._folder(job_id, blob_key)
        for path in folder.parent.glob(f"{folder.name}*"):
            remove_at_once(path)

    def drop_job(self, job_id: str) -> None:
        """Remove what was unpacked of all blobs of a job."""
        remove_at_once(self.path / check_blob_job(job_id))

    def _folder(self, job_id: str, blob_key: BlobKey) -> Path:
        return self.path / check_blob_job(job_id) / check_blob_key(blob_key)


def remove_at_once(folder: Path) -> None:
    """Remove a folder so that nobody takes a part of it for the whole, also if this process dies amid it."""
    going = _beside(folder)
    with suppress(FileNotFoundError):
        folder.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.{new_token()}")
