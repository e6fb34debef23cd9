"""Publish a log while its file grows, version by version.

Each publication puts the new part, then the version that lists it, then drops the reference to the version
before. A log blob is deleted at once with its last reference. Logs are re-creatable: only the local store of
the blob server has them.

Source: Flink BLOB storage, "Log Files".
"""

from __future__ import annotations

import logging
from io import SEEK_END, RawIOBase
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from lockgate.storage_core.blobs.blob_protocol import BlobInfo, Blobs
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.logs.log_versions import (
    FULL_BYTES,
    SEAM_BYTES,
    FoundVersion,
    Log,
    LogPart,
    LogVersion,
    PublishedFile,
    find_versions,
    merged_with_next,
    seam_of,
)
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import ObjectNotFoundError

_LOG: Final = logging.getLogger(__name__)

KEPT_S: Final = 30 * 86_400.0
"""Time for which a log without a job is kept after its last version."""

PIECE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a part, which is in memory while it is sent."""


class LogWriter:
    """Publishes one file of a log. Each file has one writer; not thread-safe.

    The writer continues what an earlier one has published, also in another process. On another machine, whose
    file has none of the earlier bytes, it appends that file's bytes. If the task returns to an earlier
    machine, it does not publish its bytes a second time. The log lapses `lapse_s` after its last version;
    with None, it is deleted with its job.

    Attributes:
        version: The newest published version.

    Raises:
        OSError: The file cannot be read.
        LockgateError: The published versions cannot be read.
    """

    def __init__(
        self,
        blobs: Blobs,
        log: Log,
        path: Path,
        *,
        file_name: str = "",
        lapse_s: float | None = KEPT_S,
        clock: Clock | None = None,
    ) -> None:
        self._blobs = blobs
        self._log = log
        self._path = path
        self._file_name = file_name
        self._lapse_s = lapse_s
        self._published_key: BlobKey | None = None
        self._unconfirmed: LogVersion | None = None
        self._stale: list[tuple[str, BlobKey]] = []
        self._clock = clock or SystemClock()
        self.version = self._load()
        self._renewed_s = 0.0 if self.version.number else self._clock.now_s()

    def publish(self, *, ends: bool = False) -> LogVersion:
        """Publish the current bytes of the file, and return the version; only new bytes are sent.

        A file that has become shorter, or begins with other bytes than before, was rotated: the log starts
        again, without its earlier bytes. Published blobs are renewed in time, even if the file does not grow.

        Raises:
            OSError: The file cannot be read.
            LockgateError: The older version may still be the newest; the next call publishes these bytes too.
        """
        self._resolve_unconfirmed()
        with self._path.open("rb", buffering=0) as file:
            size_bytes = file.seek(0, SEEK_END)
            before = self.version
            if not _begins_with(file, size_bytes, before.file):
                rotated = LogVersion(file_name=self._file_name, number=before.number, began=before.number + 1)
                self._publish(self._with_new_bytes(file, size_bytes, rotated, ends=ends))
            elif size_bytes > before.in_file:
                self._publish(self._with_new_bytes(file, size_bytes, before, ends=ends))
            elif ends and before.is_growing:
                self._publish(replace(before, number=before.number + 1, is_growing=False))
            else:
                self._drop_stale()
        age_s = self._clock.now_s() - self._renewed_s  # negative: the clock was set back
        if self._lapse_s is not None and not 0.0 <= age_s <= self._lapse_s / 2:
            self.renew()
        return self.version

    def renew(self) -> None:
        """Renew the references to the last version and its parts, for a log that is written for a long time.

        A missing blob is logged, and the others are renewed: the reader reports missing parts.

        Raises:
            LockgateError: Not all are renewed; the next publication renews the rest.
        """
        began_s = self._clock.now_s()
        for part in self.version.parts:
            self._renew(part.blob_key, self._parts_owner)
        if self._published_key is not None:
            self._renew(self._published_key, self._log.owner)
        self._renewed_s = began_s

    def _renew(self, blob_key: BlobKey, owner: str) -> None:
        try:
            self._blobs.refer(self._log.job_id, blob_key, owner, lapse_s=self._lapse_s)
        except ObjectNotFoundError as error:
            _LOG.warning("log %s: a published blob is gone: %s", self._log.name, error)

    @property
    def _parts_owner(self) -> str:
        return self._log.parts_owner(self._file_name)

    def _load(self) -> LogVersion:
        """Return the version to continue from."""
        found = self._found()
        if not found:
            return LogVersion(file_name=self._file_name)
        *older, last = found
        self._published_key, version = last.blob_key, last.version
        for old in older:
            self._stale.append((self._log.owner, old.blob_key))
            self._mark_parts_stale(old.version, kept=version)
        with self._path.open("rb", buffering=0) as file:
            return _resumed(file, version)

    def _found(self) -> list[FoundVersion]:
        """Return the published versions of this file, the newest last."""
        found = find_versions(self._blobs, self._log)
        return [version for version in found if version.version.file_name == self._file_name]

    def _resolve_unconfirmed(self) -> None:
        """Look up whether a version whose put got no response was published; its number is not used again."""
        unconfirmed = self._unconfirmed
        if unconfirmed is None:
            return
        for found in self._found():
            if found.version == unconfirmed:
                self._set_published(found)
                return
        self._mark_parts_stale(unconfirmed, kept=self.version)
        self.version = replace(self.version, number=unconfirmed.number)
        self._unconfirmed = None

    def _with_new_bytes(
        self, file: RawIOBase, size_bytes: int, before: LogVersion, *, ends: bool
    ) -> LogVersion:
        """Put the bytes that a version lacks, merged with parts before them if due; return the result."""
        in_file = tuple(part for begins, part in before.ranges() if begins >= before.file_begins)
        is_small = size_bytes - before.in_file < FULL_BYTES
        merged = merged_with_next(in_file) if is_small else ()
        begins = before.in_file - sum(part.size_bytes for part in merged)
        level = merged[0].level + 1 if merged else 0
        pieces = range(begins, size_bytes, PIECE_BYTES)
        shift = before.size_bytes - before.in_file
        added = [self._put_part(file, shift, at, min(at + PIECE_BYTES, size_bytes), level) for at in pieces]
        return replace(
            before,
            number=before.number + 1,
            parts=(*before.parts[: len(before.parts) - len(merged)], *added),
            seam=seam_of(_read(file, max(0, size_bytes - SEAM_BYTES), size_bytes)),
            is_growing=not ends,
        )

    def _put_part(self, file: RawIOBase, shift: int, begins: int, ends: int, level: int) -> LogPart:
        name = f"{shift + begins}-{shift + ends}"
        blob = self._put(_read(file, begins, ends), name, self._parts_owner)
        return LogPart(blob_key=blob.blob_key, size_bytes=blob.size_bytes, level=level)

    def _put(self, data: bytes, name: str, owner: str) -> BlobInfo:
        return self._blobs.put(
            data,
            job_id=self._log.job_id,
            guarantee="recreatable",
            use="log",
            name=f"{self._log.name} {name}",
            owners=[owner],
            lapse_s=self._lapse_s,
        )

    def _publish(self, version: LogVersion) -> None:
        """Put a version, and drop the references that it replaces."""
        self._unconfirmed = version
        blob = self._put(msgspec.json.encode(version), f"version {version.number}", self._log.owner)
        self._set_published(FoundVersion(blob_key=blob.blob_key, version=version))
        self._drop_stale()

    def _set_published(self, newer: FoundVersion) -> None:
        """Record a version as the newest one; the references of the one before become stale."""
        if self._published_key is not None:
            self._stale.append((self._log.owner, self._published_key))
        self._mark_parts_stale(self.version, kept=newer.version)
        self._published_key, self.version, self._unconfirmed = newer.blob_key, newer.version, None

    def _mark_parts_stale(self, version: LogVersion, *, kept: LogVersion) -> None:
        """Mark the references to those parts of a version as stale that the kept version lacks."""
        keys = {part.blob_key for part in kept.parts}
        self._stale += [
            (self._parts_owner, part.blob_key) for part in version.parts if part.blob_key not in keys
        ]

    def _drop_stale(self) -> None:
        """Drop stale references; the next call drops those that failed."""
        while self._stale:
            owner, blob_key = self._stale[0]
            self._blobs.drop(self._log.job_id, blob_key, owner)
            del self._stale[0]


def _resumed(file: RawIOBase, version: LogVersion) -> LogVersion:
    """Return a version with a file as its current one, of which it may already have bytes."""
    size_bytes = file.seek(0, SEEK_END)
    files = (version.file, *version.earlier)
    longest_first = sorted(files, key=lambda known: known.size_bytes, reverse=True)
    same = next((known for known in longest_first if _begins_with(file, size_bytes, known)), PublishedFile())
    if same == version.file:
        return version
    return replace(
        version,
        file_begins=version.size_bytes,
        skipped=same.size_bytes,
        seam=same.seam,
        is_growing=same.is_growing,
        earlier=tuple(known for known in files if known != same),
    )


def _begins_with(file: RawIOBase, size_bytes: int, published: PublishedFile) -> bool:
    ends = published.size_bytes
    if size_bytes < ends:
        return False
    return seam_of(_read(file, max(0, ends - SEAM_BYTES), ends)) == published.seam


def _read(file: RawIOBase, begins: int, ends: int) -> bytes:
    """Return a range of a file's bytes, fewer if the file has become shorter."""
    file.seek(begins)
    data = bytearray()
    while len(data) < ends - begins and (more := file.read(ends - begins - len(data))):
        data += more
    return bytes(data)
