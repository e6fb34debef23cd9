"""Read logs that may be growing: as text so far, or by ranges of bytes."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.logs.versions import Log, LogVersion, find_versions, newest
from lockgate.storage_core.blobs.protocol import Blobs
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError

Get = Callable[[str, BlobKey], bytes]
"""Returns a blob's bytes by job and key: `Blobs.get`, or a cache's, which keeps the parts."""


class LogReader:
    """Reads a log that may be growing.

    Args:
        blobs: Where it is.
        log: Its name.
        get: Fetches the parts; the blob server by default.
    """

    def __init__(self, blobs: Blobs, log: Log, *, get: Get | None = None) -> None:
        self._blobs = blobs
        self._log = log
        self._get = get or blobs.get

    def versions(self) -> list[LogVersion]:
        """Return the newest version of each of the log's files, by name; none: there is no such log."""
        return [found.version for found in newest(find_versions(self._blobs, self._log)).values()]

    def show(self, file_name: str = "") -> str:
        """Return the text so far; a last character of which only a part was published is left out.

        Raises:
            ObjectNotFoundError: There is no such log.
            CorruptBlobError: A part of it is damaged, in its only copy.
        """
        version = self._newest(file_name)
        if version is None:
            raise ObjectNotFoundError(
                f"log {self._log.name} of job {self._log.job_id}: nothing was published of it, or it has "
                "lapsed"
            )
        return "".join(text_of(self.read(version)))

    def read(self, version: LogVersion, begins: int = 0, ends: int | None = None) -> Iterator[bytes]:
        """Yield a range of a version's bytes, a part at a time; of parts outside it nothing is fetched.

        A part that was merged since with others is read from them.

        Args:
            version: Of the log.
            begins: First byte of the range; a negative one is the version's first, for tails of short logs.
            ends: Byte after its last; None: the version's end.

        Raises:
            ObjectNotFoundError: The log has lapsed, or has begun anew.
            CorruptBlobError: A part of it is damaged, in its only copy, or shorter than the version says.
        """
        until = version.size_bytes if ends is None else min(ends, version.size_bytes)
        at, source = max(begins, 0), version
        while at < until:
            part, inside = _part_at(source, at)
            try:
                data = self._get(self._log.job_id, part)
            except ObjectNotFoundError:
                source = self._newer(source)
                continue
            data = data[inside : inside + until - at]
            if not data:
                raise CorruptBlobError(
                    f"log {self._log.name} of job {self._log.job_id}: version {source.number} lacks byte "
                    f"{at}; two writers may have published it; what was shown so far is right; show it again"
                )
            at += len(data)
            yield data

    def _newest(self, file_name: str) -> LogVersion | None:
        found = newest(find_versions(self._blobs, self._log)).get(file_name)
        return None if found is None else found.version

    def _newer(self, version: LogVersion) -> LogVersion:
        """Return a newer version of the same bytes."""
        newer = self._newest(version.file_name)
        if newer is None or newer.number <= version.number or newer.began != version.began:
            raise ObjectNotFoundError(
                f"log {self._log.name} of job {self._log.job_id}: parts of version {version.number} are "
                "gone, and no newer one has them: it has lapsed, or has begun anew; show it again"
            )
        return newer


def text_of(data: Iterator[bytes]) -> Iterator[str]:
    """Decode UTF-8 that comes in pieces; a last character that is not complete yet is left out."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in data:
        yield decoder.decode(piece)


def lines_of(data: Iterator[bytes]) -> Iterator[str]:
    """Yield lines without their ends; a last one that is not complete yet as it is."""
    rest = ""
    for text in text_of(data):
        *lines, rest = (rest + text).split("\n")
        yield from lines
    if rest:
        yield rest


def _part_at(version: LogVersion, at: int) -> tuple[BlobKey, int]:
    """Return the part that has a byte of a version, and which of the part's it is."""
    begins, part = [one for one in version.ranges() if one[0] <= at][-1]
    return part.blob_key, at - begins
