"""Logs that are shown: as text so far, by ranges of bytes, and by a viewer that follows a growing one."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from lockgate.storage_core.blobs.keys import BlobKey
from lockgate.storage_core.blobs.logs.versions import FoundVersion, Log, LogVersion, find_versions, newest
from lockgate.storage_core.blobs.protocol import Blobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import CorruptBlobError, ObjectNotFoundError

SHOWN_S: Final = 3_600.0
"""A viewer that shows no newer version for so long has gone."""

TRIES: Final = 5
"""Of a viewer to refer to a version before a newer one takes its place."""

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


class LogView:
    """Shows one viewer a growing log: what it shows stays until it shows a newer version, or goes.

    Args:
        blobs: Where the log is.
        log: Its name.
        viewer: Tells the viewer from all others.
        file_name: Of the log's file.
        shown_s: Without another look for so long, the viewer has gone.
        clock: The machine's by default.
    """

    def __init__(
        self,
        blobs: Blobs,
        log: Log,
        viewer: str,
        *,
        file_name: str = "",
        shown_s: float = SHOWN_S,
        clock: Clock | None = None,
    ) -> None:
        self._blobs = blobs
        self._log = log
        self._owner = f"viewer:{viewer}"
        self._file_name = file_name
        self._shown_s = shown_s
        self._clock = clock or SystemClock()
        self._held: dict[BlobKey, float] = {}

    def show(self) -> LogVersion | None:
        """Refer to the newest version, and let go what only the one before had; None: there is no log.

        Raises:
            ObjectNotFoundError: Versions follow each other faster than the viewer can refer to one.
        """
        for tried in range(1, TRIES + 1):
            found = newest(find_versions(self._blobs, self._log)).get(self._file_name)
            if found is None:
                return None
            try:
                self._hold(found)
            except ObjectNotFoundError:
                if tried == TRIES:
                    raise
                continue
            self._drop([key for key in self._held if key not in _blobs_of(found)])
            return found.version
        return None

    def close(self) -> None:
        """Let go what is shown."""
        self._drop(list(self._held))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hold(self, found: FoundVersion) -> None:
        """Refer to a version and its parts; to those that are referred to for long yet, not again."""
        now_s = self._clock.now_s()
        for blob_key in _blobs_of(found):
            if self._held.get(blob_key, 0.0) - now_s < self._shown_s / 2:
                self._blobs.refer(self._log.job_id, blob_key, self._owner, lapse_s=self._shown_s)
                self._held[blob_key] = now_s + self._shown_s

    def _drop(self, blob_keys: list[BlobKey]) -> None:
        for blob_key in blob_keys:
            self._blobs.drop(self._log.job_id, blob_key, self._owner)
            del self._held[blob_key]


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


def _blobs_of(found: FoundVersion) -> list[BlobKey]:
    return [found.blob_key, *(part.blob_key for part in found.version.parts)]
