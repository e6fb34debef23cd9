"""Files uploaded together: one set, so that none is cleaned up before the last one is in.

Source: Flink BLOB storage, "BlobServer Upload".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lockgate.storage_core.blobs.keys import BlobKey, UploadSetId
from lockgate.storage_core.blobs.protocol import BlobInfo, Blobs
from lockgate.storage_core.blobs.registry.rows import BlobUse, Guarantee
from lockgate.storage_core.blobs.sources import ObservedFile
from lockgate.storage_core.concurrency import Progress, in_order, no_progress
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.stores.os_errors import translated

FILES_AT_ONCE: Final = 8


class LocalFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to be uploaded.

    Attributes:
        name: That its blob is to have.
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
    """Bytes read of all files."""

    def __init__(self, size_bytes: int, progress: Progress) -> None:
        self._size_bytes = size_bytes
        self._progress = progress
        self._done = 0

    def add(self, size_bytes: int) -> None:
        self._done = min(self._done + size_bytes, self._size_bytes)  # a file that is sent again counts once
        self._progress("upload", self._done, self._size_bytes)


def files_below(paths: Iterable[Path]) -> list[LocalFile]:
    """Return files, and the files of directories, which are named by their paths there.

    Raises:
        InvalidInputError: There is no such file, or two would have one name.
    """
    found: dict[str, LocalFile] = {}
    for path in paths:
        if not path.exists():
            raise InvalidInputError(f"{path}: there is no such file or directory; nothing was uploaded")
        inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        for one in inside:
            name = str(one.relative_to(path)) if path.is_dir() else one.name
            if name in found:
                raise InvalidInputError(
                    f"{found[name].path} and {one} would both be named {name}; nothing was uploaded; "
                    "upload them apart"
                )
            found[name] = LocalFile(path=one, name=name, size_bytes=one.stat().st_size)
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
    """Upload files for a job as one set; it is to be submitted within the retention interval.

    Whatever fails, the set is closed and its blobs are swept.

    Args:
        blobs: To which.
        files: In the order in which they are returned.
        job_id: Of the job, which need not exist.
        guarantee: Whether a recovery needs them.
        use: What they are for.
        owners: Whose references they have at once.
        progress: Hears of the bytes.

    Raises:
        LockgateError: What the first file that failed met.
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
        _give_up(blobs, upload_set)
        raise
    blobs.complete_set(upload_set)
    return [
        Uploaded(name=file.name, blob_key=info.blob_key, size_bytes=info.size_bytes)
        for file, info in zip(files, infos, strict=True)
    ]


def _give_up(blobs: Blobs, upload_set: UploadSetId) -> None:
    with suppress(LockgateError):  # then its lease lapses
        blobs.complete_set(upload_set)
