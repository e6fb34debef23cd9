"""Read a log that may be growing, as text or by ranges of bytes."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

from lockgate.storage_core.blobs.blob_protocol import Blobs
from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.logs.log_versions import Log, LogVersion, find_versions, newest
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError

Get = Callable[[str, BlobKey], bytes]
"""Returns the bytes of a blob by job and key: `Blobs.get`, or that of a cache, which keeps the parts."""


class LogReader:
    """Reads a log that may be growing."""

    def __init__(self, blobs: Blobs, log: Log, *, get: Get | None = None) -> None:
        self._blobs = blobs
        self._log = log
        self._get = get or blobs.get

    def versions(self) -> list[LogVersion]:
        """Return the newest version of each file of the log, by name; empty if there is no such log."""
        return [found.version for found in newest(find_versions(self._blobs, self._log)).values()]

    def read(self, version: LogVersion, begins: int = 0, ends: int | None = None) -> Iterator[bytes]:
        """Yield a range of a version's bytes, part by part; only the parts of the range are fetched.

        If a part was merged into another since, its bytes are read from that.

        Raises:
            ObjectNotFoundError: The log has lapsed, or was rotated.
            CorruptBlobError: The only copy of a part is damaged, or shorter than the version records.
        """
        until = version.size_bytes if ends is None else min(ends, version.size_bytes)
        at, source = max(begins, 0), version
        while at < until:
            part, offset = _part_at(source, at)
            try:
                data = self._get(self._log.job_id, part)
            except ObjectNotFoundError:
                source = self._newer(source)
                continue
            data = data[offset : offset + until - at]
            if not data:
                raise CorruptBlobError(
                    f"log {self._log.name} of job {self._log.job_id}: version {source.number} lacks byte "
                    f"{at}; two writers may have published it; the bytes before it are correct; read it again"
                )
            at += len(data)
            yield data

    def _newest(self, file_name: str) -> LogVersion | None:
        found = newest(find_versions(self._blobs, self._log)).get(file_name)
        return None if found is None else found.version

    def _newer(self, version: LogVersion) -> LogVersion:
        """Return a newer version that begins with the same bytes."""
        newer = self._newest(version.file_name)
        if newer is None or newer.number <= version.number or newer.began != version.began:
            raise ObjectNotFoundError(
                f"log {self._log.name} of job {self._log.job_id}: parts of version {version.number} are "
                "gone, and no newer version has them: it has lapsed, or was rotated; read it again"
            )
        return newer


def lines_of(data: Iterator[bytes]) -> Iterator[str]:
    """Decode UTF-8 and yield lines without their line ends; the last one may be incomplete."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece in data:
        *lines, rest = (rest + decoder.decode(piece)).split("\n")
        yield from lines
    if rest:
        yield rest


def _part_at(version: LogVersion, at: int) -> tuple[BlobKey, int]:
    """Return the part with a byte of a version, and the byte's offset in the part."""
    begins, part = [found for found in version.ranges() if found[0] <= at][-1]
    return part.blob_key, at - begins
