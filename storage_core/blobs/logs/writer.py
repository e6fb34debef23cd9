"""A running task's log in the blob stores, published version by version as its file grows.

A new part comes first, then the version that names it, then the older version's reference goes, and with its
last reference a log's blob is deleted at once: whoever shows a log refers to what it shows.

Logs are re-creatable: they are in the local store of the blob server only.

Source: Flink BLOB storage, "Log Files".
"""

from __future__ import annotations

import logging
from io import SEEK_END, RawIOBase
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.logs.versions import (
    FULL_BYTES,
    SEAM_BYTES,
    FoundVersion,
    Log,
    LogPart,
    LogVersion,
    PublishedFile,
    encoded,
    find_versions,
    merged_with_next,
    seam_of,
)
from lockgate.storage_core.blobs.protocol import Blobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import ObjectNotFoundError

_LOG: Final = logging.getLogger(__name__)

KEPT_S: Final = 30 * 86_400.0
"""A log that belongs to no job is kept so long after its last version."""

PIECE_BYTES: Final = 16 * 1024 * 1024
"""Greatest size of a part: so much is in memory at a time."""


class LogWriter:
    """Publishes a log's file as it grows. One writer a file; not for several threads at once.

    It goes on with what an earlier writer has published of the same file, also in another process, and also
    on another machine, whose file has none of the earlier bytes: they stay, and its own come after them. A
    task may come back to an earlier machine: what was published of the file there is not published again.

    Args:
        blobs: Where to.
        log: Its name.
        path: Of the file.
        file_name: Tells it from the log's other files.
        lapse_s: The log goes so long after its last version; None: with its job.
        clock: The machine's by default.

    Raises:
        OSError: The file cannot be read.
        LockgateError: What is known of the log could not be read.
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
        self._shown: BlobKey | None = None
        self._attempted: LogVersion | None = None
        self._passed: list[tuple[str, BlobKey]] = []
        self._clock = clock or SystemClock()
        self.version = self._resumed()
        self._renewed_s = 0.0 if self.version.number else self._clock.now_s()

    def publish(self, *, ends: bool = False) -> LogVersion:
        """Publish what the file has by now, and return that version; only new bytes are moved.

        A file that has become shorter, or begins with other bytes than it did, was rotated: the log begins
        anew, and what it had is let go. What was published is renewed in time, whether the file grows or not.

        Args:
            ends: The file grows no more: the version says that it is whole.

        Raises:
            OSError: The file cannot be read.
            LockgateError: The older version may still be shown; the next call publishes these bytes, too.
        """
        self._settle()
        with self._path.open("rb", buffering=0) as file:
            size_bytes = file.seek(0, SEEK_END)
            before = self.version
            if not _continues(file, size_bytes, before.file):
                self._show(self._grown(file, size_bytes, self._anew(before), ends=ends))
            elif size_bytes > before.in_file:
                self._show(self._grown(file, size_bytes, before, ends=ends))
            elif ends and before.is_growing:
                self._show(replace(before, number=before.number + 1, is_growing=False))
            else:
                self._let_go()
        if self._lapse_s is not None and self._clock.now_s() - self._renewed_s > self._lapse_s / 2:
            self.renew()
        return self.version

    def renew(self) -> None:
        """Let the last version and its parts lapse as late as new ones, for a log that takes long to write.

        One that is gone is told of, and the others are renewed: the reader says what it cannot show.

        Raises:
            LockgateError: Not all are renewed; the next publication does it.
        """
        began_s = self._clock.now_s()
        for part in self.version.parts:
            self._renew(part.blob_key, self._parts_owner)
        if self._shown is not None:
            self._renew(self._shown, self._log.owner)
        self._renewed_s = began_s

    def _renew(self, blob_key: BlobKey, owner: str) -> None:
        try:
            self._blobs.refer(self._log.job_id, blob_key, owner, lapse_s=self._lapse_s)
        except ObjectNotFoundError as error:
            _LOG.warning("log %s: some of what was published of it is gone: %s", self._log.name, error)

    @property
    def _parts_owner(self) -> str:
        return self._log.parts_owner(self._file_name)

    def _resumed(self) -> LogVersion:
        """Return the version to go on from."""
        found = self._found()
        if not found:
            return LogVersion(file_name=self._file_name)
        *older, last = found
        self._shown, version = last.blob_key, last.version
        for one in older:
            self._passed.append((self._log.owner, one.blob_key))
            self._pass_parts(one.version, kept=version)
        with self._path.open("rb", buffering=0) as file:
            return _resumed_with(file, version)

    def _anew(self, before: LogVersion) -> LogVersion:
        return LogVersion(file_name=self._file_name, number=before.number, began=before.number + 1)

    def _found(self) -> list[FoundVersion]:
        """Return the versions of this file that are found, the newest last."""
        found = find_versions(self._blobs, self._log)
        return [one for one in found if one.version.file_name == self._file_name]

    def _settle(self) -> None:
        """Find out whether a version is shown whose publication had no answer, or an error for one.

        Its number is never another's: it may still come to be shown, and is older then.
        """
        attempted = self._attempted
        if attempted is None:
            return
        for one in self._found():
            if one.version == attempted:
                self._is_shown(one)
                return
        self._pass_parts(attempted, kept=self.version)
        self.version = replace(self.version, number=attempted.number)
        self._attempted = None

    def _grown(self, file: RawIOBase, size_bytes: int, before: LogVersion, *, ends: bool) -> LogVersion:
        """Put the bytes that a version lacks, with those before them where it is time to merge parts."""
        in_file = tuple(part for begins, part in before.ranges() if begins >= before.file_begins)
        is_small = size_bytes - before.in_file < FULL_BYTES
        merged = merged_with_next(in_file) if is_small else ()
        begins = before.in_file - sum(part.size_bytes for part in merged)
        level = merged[0].level + 1 if merged else 0
        pieces = range(begins, size_bytes, PIECE_BYTES)
        shift = before.size_bytes - before.in_file
        added = [self._put(file, shift, at, min(at + PIECE_BYTES, size_bytes), level) for at in pieces]
        return replace(
            before,
            number=before.number + 1,
            parts=(*before.parts[: len(before.parts) - len(merged)], *added),
            seam=seam_of(_read(file, max(0, size_bytes - SEAM_BYTES), size_bytes)),
            is_growing=not ends,
        )

    def _put(self, file: RawIOBase, shift: int, begins: int, ends: int, level: int) -> LogPart:
        blob = self._blobs.put(
            _read(file, begins, ends),
            job_id=self._log.job_id,
            guarantee="recreatable",
            use="log",
            name=f"{self._log.name} {shift + begins}-{shift + ends}",
            owners=[self._parts_owner],
            lapse_s=self._lapse_s,
        )
        return LogPart(blob_key=blob.blob_key, size_bytes=blob.size_bytes, level=level)

    def _show(self, version: LogVersion) -> None:
        """Make a version the one that is found, and let the one before go."""
        self._attempted = version
        blob = self._blobs.put(
            encoded(version),
            job_id=self._log.job_id,
            guarantee="recreatable",
            use="log",
            name=f"{self._log.name} version {version.number}",
            owners=[self._log.owner],
            lapse_s=self._lapse_s,
        )
        self._is_shown(FoundVersion(blob_key=blob.blob_key, version=version))
        self._let_go()

    def _is_shown(self, newer: FoundVersion) -> None:
        """Take a version for the one that is found; the one before passes."""
        if self._shown is not None:
            self._passed.append((self._log.owner, self._shown))
        self._pass_parts(self.version, kept=newer.version)
        self._shown, self.version, self._attempted = newer.blob_key, newer.version, None

    def _pass_parts(self, version: LogVersion, *, kept: LogVersion) -> None:
        """Note the parts of a version to be let go that the one that is kept has not."""
        keys = {part.blob_key for part in kept.parts}
        self._passed += [
            (self._parts_owner, part.blob_key) for part in version.parts if part.blob_key not in keys
        ]

    def _let_go(self) -> None:
        """Drop the references to what is shown no more; what could not be dropped is, the next time."""
        while self._passed:
            owner, blob_key = self._passed[0]
            self._blobs.drop(self._log.job_id, blob_key, owner)
            del self._passed[0]


def _resumed_with(file: RawIOBase, version: LogVersion) -> LogVersion:
    """Return a version as one to which a file's bytes are added: those that it has of that file are not."""
    size_bytes = file.seek(0, SEEK_END)
    files = (version.file, *version.earlier)
    longest_first = sorted(files, key=lambda one: one.size_bytes, reverse=True)
    same = next((one for one in longest_first if _continues(file, size_bytes, one)), PublishedFile())
    if same == version.file:
        return version
    return replace(
        version,
        file_begins=version.size_bytes,
        skipped=same.size_bytes,
        seam=same.seam,
        is_growing=same.is_growing,
        earlier=tuple(one for one in files if one != same),
    )


def _continues(file: RawIOBase, size_bytes: int, published: PublishedFile) -> bool:
    """Tell whether a file begins with what was published of one."""
    ends = published.size_bytes
    if size_bytes < ends:
        return False
    return seam_of(_read(file, max(0, ends - SEAM_BYTES), ends)) == published.seam


def _read(file: RawIOBase, begins: int, ends: int) -> bytes:
    """Return a range of a file's bytes; shorter if the file has become so."""
    file.seek(begins)
    data = bytearray()
    while len(data) < ends - begins and (more := file.read(ends - begins - len(data))):
        data += more
    return bytes(data)
