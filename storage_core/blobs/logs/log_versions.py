"""Versions of a log in the blob stores: each is a blob that lists the parts of the log.

A version has the parts of the version before and a new one, so only new bytes are sent. Sixteen parts of one
level are merged into one part of the next level. So a byte is sent again only once each time the log grows
sixteenfold. The log's owner refers to its versions, so a reader finds them by the log's name.

Source: Flink BLOB storage, "Log Files".
"""

from __future__ import annotations

import hashlib
from itertools import accumulate
from typing import Final
from urllib.parse import quote

import msgspec

from lockgate.storage_core.blobs.blob_protocol import Blobs
from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey
from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError

MERGED: Final = 16
"""Number of parts that are merged into one of the next level."""

FULL_BYTES: Final = 1024 * 1024
"""Size from which a part is not merged."""

SEAM_BYTES: Final = 4_096
"""Bytes before the end of a version whose hash shows whether a file still begins with it."""

_NOTHING: Final = hashlib.sha256().hexdigest()


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Name of a log, which may have several files that are shown together.

    Attributes:
        name: Name, unique within the job.
        job_id: Job with which the log is deleted; `NO_JOB`: it is deleted when its references lapse.
    """

    name: str
    job_id: str = NO_JOB

    @property
    def owner(self) -> str:
        """Owner of the references to the newest versions."""
        return f"log:{self.job_id}/{quote(self.name)}"

    def parts_owner(self, file_name: str) -> str:
        """Return the owner of the references to the parts of a file."""
        return f"log-parts:{self.job_id}/{quote(self.name)}/{quote(file_name, safe='')}"


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a log's bytes.

    Attributes:
        level: Number of times that its bytes were merged.
    """

    blob_key: BlobKey
    size_bytes: int
    level: int = 0


class PublishedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Published part of a file.

    Attributes:
        size_bytes: Number of published bytes, from the beginning of the file.
        seam: SHA-256 of the last `SEAM_BYTES` of them, in hexadecimal, which identifies the file.
        is_growing: Whether the end of the file was not published.
    """

    size_bytes: int = 0
    seam: str = _NOTHING
    is_growing: bool = False


class LogVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A published state of a log.

    Attributes:
        file_name: Name of the file within the log.
        number: Number of the version, one more than that of the version before.
        began: Number of the first version since the last rotation. If two versions have the same `began`,
            the longer one starts with the bytes of the shorter one.
        parts: Parts in the order of their bytes.
        file_begins: Offset in the log of the current file's bytes; those before are of earlier files.
        skipped: Number of bytes at the start of the current file that lie before `file_begins`. Not 0 only if
            this file was current, then another one, and now this one again.
        seam: Seam of the published part of the current file.
        is_growing: Whether more of the current file is to come.
        earlier: Published parts of the other files, each on another machine.
    """

    file_name: str
    number: int = 0
    began: int = 0
    parts: tuple[LogPart, ...] = ()
    file_begins: int = 0
    skipped: int = 0
    seam: str = _NOTHING
    is_growing: bool = False
    earlier: tuple[PublishedFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of all parts."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def in_file(self) -> int:
        """Number of published bytes of the current file."""
        return self.size_bytes - self.file_begins + self.skipped

    @property
    def file(self) -> PublishedFile:
        """Published part of the current file."""
        return PublishedFile(size_bytes=self.in_file, seam=self.seam, is_growing=self.is_growing)

    @property
    def growing(self) -> list[PublishedFile]:
        """Files whose end was not published."""
        return [file for file in (*self.earlier, self.file) if file.is_growing]

    def ranges(self) -> list[tuple[int, LogPart]]:
        """Return the parts, each after its offset in the log."""
        offsets = accumulate((part.size_bytes for part in self.parts), initial=0)
        return list(zip(offsets, self.parts, strict=False))


class FoundVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version, and the key of its blob."""

    blob_key: BlobKey
    version: LogVersion


def seam_of(data: bytes) -> str:
    """Return the seam of bytes that end a published part of a file."""
    return hashlib.sha256(data[-SEAM_BYTES:]).hexdigest()


def merged_with_next(parts: tuple[LogPart, ...]) -> tuple[LogPart, ...]:
    """Return the parts at the end that must be merged with the next small part; empty if none."""
    merged, level = 0, 0
    while True:
        group = parts[: len(parts) - merged][-(MERGED - 1) :]
        if len(group) < MERGED - 1 or any(
            part.level != level or part.size_bytes >= FULL_BYTES for part in group
        ):
            return parts[len(parts) - merged :]
        merged, level = merged + MERGED - 1, level + 1


def find_versions(blobs: Blobs, log: Log) -> list[FoundVersion]:
    """Return the versions of a log's files, the newest of each file last.

    Each file has one version; during a publication or after a crash it may have an older one too. If two
    writers published the same number, the longer one counts as newer.

    Raises:
        CorruptBlobError: A version is damaged.
    """
    found = []
    for reference in blobs.references(job_id=log.job_id, owner=log.owner):
        blob_key = BlobKey(reference.blob_key)
        try:
            data = blobs.get(log.job_id, blob_key)
        except ObjectNotFoundError:
            continue  # replaced by a newer version meanwhile
        try:
            version = decode_json(data, LogVersion)
        except msgspec.DecodeError as error:
            raise CorruptBlobError(
                f"log {log.name}: blob {log.job_id}/{blob_key} is not a version of a log: {error}"
            ) from None
        found.append(FoundVersion(blob_key=blob_key, version=version))
    return sorted(
        found,
        key=lambda one: (one.version.file_name, one.version.number, one.version.size_bytes, one.blob_key),
    )


def newest(found: list[FoundVersion]) -> dict[str, FoundVersion]:
    """Return the newest version of each file, by its name."""
    return {version.version.file_name: version for version in found}
