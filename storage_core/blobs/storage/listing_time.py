"""Listing time: when the blob stores were last listed for bytes without a row, kept in a file.

A process that leaves such bytes deletes the file, so the next sweep lists the stores. A listing creates a new
file as it begins and writes to that same file at its end: if the file was deleted meanwhile, the listing does
not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

from lockgate.storage_core.stores.os_errors import translated

LISTED: Final = ".listed"
LISTING_EVERY_S: Final = 86_400.0


class Listing:
    """A listing under way."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file = file

    def record(self, at_s: float, epoch: int) -> None:
        """Record that the stores were listed; without effect if bytes were left since the listing began."""
        with translated("write", str(self._path), changes=True):
            self._file.write(f"{at_s!r} {epoch}".encode())


class ListingTime:
    """The listing time of a local store and its HA store."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LISTED

    def is_due(self, now_s: float, epoch: int) -> bool:
        """Return whether the stores are to be listed again."""
        with translated("read", str(self._path), changes=False):
            try:
                listed_s, of_epoch = self._path.read_text().split()
                age_s, is_same = now_s - float(listed_s), int(of_epoch) == epoch
            except (FileNotFoundError, ValueError):  # the file was truncated
                return True
        return not is_same or not 0 <= age_s < LISTING_EVERY_S

    @contextmanager
    def begin(self) -> Iterator[Listing]:
        """Begin a listing; until it is recorded, the next one is due."""
        with translated("write", str(self._path), changes=True):
            file = self._create()
        with file:
            yield Listing(self._path, file)

    def forget(self) -> None:
        """Make the next listing due; this needs no space on a full disk."""
        with translated("delete", str(self._path), changes=True), suppress(FileNotFoundError):
            self._path.unlink()

    def _create(self) -> FileIO:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            self.forget()
            with suppress(FileExistsError):  # another listing began: the later one counts
                return FileIO(self._path, "xb")
