"""Upload files as one set, so that none is swept before the last one is stored; download a blob into a file.

Source: Flink BLOB storage, "BlobServer Upload".
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.blobs.blob_protocol import BlobInfo, Blobs
from lockgate.storage_core.blobs.keys import BlobKey, UploadSetId
from lockgate.storage_core.blobs.registry.blob_rows import BlobUse, Guarantee
from lockgate.storage_core.blobs.sources import ObservedFile
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.concurrency import Progress, in_order, no_progress
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.stores.os_errors import translated

FILES_AT_ONCE: Final = 8


class LocalFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to be uploaded.

    Attributes:
        name: Name of its blob.
    """

    path: Path
    name: str
    size_bytes: int


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was uploaded."""

    name: str
    blob_key: BlobKey
    size_bytes: int


class _Total:
    """Count the bytes read of all files."""

    def __init__(self, size_bytes: int, progress: Progress) -> None:
        self._size_bytes = size_bytes
        self._progress = progress
        self._done = 0

    def add(self, size_bytes: int) -> None:
        self._done = min(self._done + size_bytes, self._size_bytes)  # a file that is sent again counts once
        self._progress("upload", self._done, self._size_bytes)


def files_below(paths: Iterable[Path]) -> list[LocalFile]:
    """Return files, and all files below directories, named by their relative paths.

    Raises:
        InvalidInputError: A file does not exist, or two files have one name.
    """
    found: dict[str, LocalFile] = {}
    for path in paths:
        if not path.exists():
            raise InvalidInputError(f"{path}: there is no such file or directory; nothing was uploaded")
        inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in inside:
            name = str(file.relative_to(path)) if path.is_dir() else file.name
            if name in found:
                raise InvalidInputError(
                    f"{found[name].path} and {file} would both be named {name}; nothing was uploaded; "
                    "upload them separately"
                )
            found[name] = LocalFile(path=file, name=name, size_bytes=file.stat().st_size)
    if not found:
        raise InvalidInputError("there is no file to upload; nothing was done")
    return list(found.values())


def upload(
    blobs: Blobs,
    files: Sequence[LocalFile],
    *,
    job_id: str,
    guarantee: Guarantee = "ha",
    use: BlobUse = "library",
    owners: Sequence[str] = (),
    progress: Progress = no_progress,
) -> list[Uploaded]:
    """Upload files for a job as one set; submit the job within the retention interval.

    On any error the set is closed, and its blobs are swept.

    Args:
        blobs: Blob server.
        files: Files to upload; the result has the same order.
        job_id: Id of the job, which need not exist.
        guarantee: Whether a recovery needs them.
        use: Purpose of the blobs.
        owners: Owners that refer to the blobs at once.
        progress: Called with the bytes sent.

    Raises:
        LockgateError: A file could not be uploaded.
    """
    total = _Total(sum(file.size_bytes for file in files), progress)
    upload_set = blobs.begin_set(job_id)

    def put(file: LocalFile) -> BlobInfo:
        with translated("read", str(file.path), changes=False):
            return blobs.put(
                ObservedFile(file.path, total.add),
                job_id=job_id,
                guarantee=guarantee,
                use=use,
                name=file.name,
                upload_set=upload_set,
                owners=owners,
            )

    try:
        infos = list(in_order(put, files, FILES_AT_ONCE))
    except BaseException:
        _abandon(blobs, upload_set)
        raise
    blobs.complete_set(upload_set)
    return [
        Uploaded(name=file.name, blob_key=info.blob_key, size_bytes=info.size_bytes)
        for file, info in zip(files, infos, strict=True)
    ]


def _abandon(blobs: Blobs, upload_set: UploadSetId) -> None:
    with suppress(LockgateError):  # the lease then lapses
        blobs.complete_set(upload_set)


def fetch_file(
    blobs: Blobs, job_id: str, blob_key: BlobKey, output: Path | None, *, progress: Progress = no_progress
) -> Path:
    """Fetch a complete blob into a file and return its path; on an error the file is unchanged.

    Without `output` it becomes a new file in the working directory, with the blob's name.

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
