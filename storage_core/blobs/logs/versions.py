"""What a log looks like in the blob stores: a version names the parts that the log consists of so far.

A log grows, and each version has the parts of the one before and one more: only new bytes are moved. Parts
are merged as they become many, sixteen of a size to one of the next, so that a byte is moved again once for
every sixteenfold that its log grows. A version is a blob itself; the log's owner refers to it, so whoever
knows the log's name finds it.

Source: Flink BLOB storage, "Log Files".
"""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote

import msgspec

from lockgate.storage_core.blobs.keys import NO_JOB, BlobKey
from lockgate.storage_core.blobs.protocol import Blobs
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError

MERGED: Final = 16
"""Parts of one level make one of the next."""

FULL_BYTES: Final = 1024 * 1024
"""A part that is as large is merged with no other."""

SEAM_BYTES: Final = 4_096
"""So many bytes before the end of a version tell whether a file still begins with it."""

_NOTHING: Final = hashlib.sha256().hexdigest()


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Names a log, or several that are shown together.

    Attributes:
        job_id: Whose log it is: it goes with the job. `no_job`: it goes when its references lapse.
        name: Of the log, unique within its job.
    """

    name: str
    job_id: str = NO_JOB

    @property
    def owner(self) -> str:
        """Of the references to the newest versions."""
        return f"log:{self.job_id}/{quote(self.name)}"

    def parts_owner(self, file_name: str) -> str:
        """Return the owner of the references to the parts of a file's newest version."""
        return f"log-parts:{self.job_id}/{quote(self.name)}/{quote(file_name, safe='')}"


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a log's bytes.

    Attributes:
        level: How often it was merged.
    """

    blob_key: BlobKey
    size_bytes: int
    level: int = 0


class PublishedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What was published of a file.

    Attributes:
        size_bytes: So many bytes, its first ones.
        seam: SHA-256 of the last of them, at most 4,096, in hexadecimal: tells whether a file begins so.
        is_growing: More was to come: its end was not published.
    """

    size_bytes: int = 0
    seam: str = _NOTHING
    is_growing: bool = False


class LogVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A log as it was when it was published.

    Attributes:
        file_name: Of the file: logs of several files may be shown together.
        number: Grows by one with each version.
        began: Number of the version with which it began anew: of versions that agree in this, the longer one
            begins with the bytes of the shorter.
        parts: In the order of their bytes.
        file_begins: Where in the log the bytes of its present file begin: those before are of earlier files.
        skipped: So many of the present file's first bytes are before: it was the present one earlier, too.
        seam: Of what was published of the present file.
        is_growing: More of the present file is to come; older programs did not say so.
        earlier: What was published of the other files, each on another machine.
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
        """Of all its parts."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def in_file(self) -> int:
        """How many bytes of the present file it has."""
        return self.size_bytes - self.file_begins + self.skipped

    @property
    def file(self) -> PublishedFile:
        """What was published of the present file."""
        return PublishedFile(size_bytes=self.in_file, seam=self.seam, is_growing=self.is_growing)

    @property
    def growing(self) -> list[PublishedFile]:
        """What was published of those files whose ends were not."""
        return [one for one in (*self.earlier, self.file) if one.is_growing]

    def ranges(self) -> list[tuple[int, LogPart]]:
        """Return its parts, each with where it begins."""
        begins, ranges = 0, []
        for part in self.parts:
            ranges.append((begins, part))
            begins += part.size_bytes
        return ranges


class FoundVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version, and the blob that it is."""

    blob_key: BlobKey
    version: LogVersion


def seam_of(data: bytes) -> str:
    """Return the seam of bytes that are the last ones of a version."""
    return hashlib.sha256(data[-SEAM_BYTES:]).hexdigest()


def merged_with_next(parts: tuple[LogPart, ...]) -> tuple[LogPart, ...]:
    """Return the parts at the end of a file's that are merged with a small one that is added to them."""
    taken, level = 0, 0
    while True:
        fellows = parts[: len(parts) - taken][-(MERGED - 1) :]
        if len(fellows) < MERGED - 1 or any(
            part.level != level or part.size_bytes >= FULL_BYTES for part in fellows
        ):
            return parts[len(parts) - taken :]
        taken, level = taken + MERGED - 1, level + 1


def encoded(version: LogVersion) -> bytes:
    """Return the bytes of a version's blob."""
    return msgspec.json.encode(version)


def find_versions(blobs: Blobs, log: Log) -> list[FoundVersion]:
    """Return the versions of a log's files that its owner refers to, the newest of a file last.

    There is one a file, and for a moment, or after a crash, an older one beside it. Of two that have the same
    number, for which there must have been two writers, the longer one is the newer.

    Raises:
        CorruptBlobError: One is damaged.
    """
    found = []
    for reference in blobs.references(job_id=log.job_id, owner=log.owner):
        blob_key = BlobKey(reference.blob_key)
        try:
            data = blobs.get(log.job_id, blob_key)
        except ObjectNotFoundError:
            continue  # a newer one has taken its place
        try:
            version = msgspec.json.decode(data, type=LogVersion)
        except msgspec.DecodeError as error:
            raise CorruptBlobError(
                f"log {log.name}: blob {log.job_id}/{blob_key} is no version of a log: {error}"
            ) from None
        found.append(FoundVersion(blob_key=blob_key, version=version))
    return sorted(found, key=_age)


def newest(found: list[FoundVersion]) -> dict[str, FoundVersion]:
    """Return, by name of the file, the newest version of each."""
    return {one.version.file_name: one for one in found}


def _age(one: FoundVersion) -> tuple[str, int, int, str]:
    version = one.version
    return version.file_name, version.number, version.size_bytes, one.blob_key
