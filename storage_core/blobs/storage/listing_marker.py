"""When the stores of blobs were last listed for bytes that no row knows, as a file of the local store.

Whoever leaves such bytes removes the file, so that the next sweep lists. A listing makes it anew as it begins
and writes into that very file at its end: if it was removed meanwhile, what is written counts for nothing.
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
    """A listing that goes; what it notes counts, unless something was left since it began."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file = file

    def note(self, at_s: float, epoch: int) -> None:
        """Keep that the stores were listed, and nothing was left open.

        Args:
            at_s: When it began, by the journal's clock.
            epoch: Of the journal then.
        """
        with translated("write", str(self._path), changes=True):
            self._file.write(f"{at_s!r} {epoch}".encode())


class LastListing:
    """When a local store and its HA store were last listed.

    Args:
        folder: Of the local store.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LISTED

    def is_due(self, now_s: float, epoch: int) -> bool:
        """Tell whether they are to be listed again.

        Args:
            now_s: By the journal's clock.
            epoch: Of the journal now: one that began since may not know every row that it did.
        """
        with translated("read", str(self._path), changes=False):
            try:
                listed_s, of_epoch = self._path.read_text().split()
                age_s, is_same = now_s - float(listed_s), int(of_epoch) == epoch
            except (FileNotFoundError, ValueError):  # a file that was cut off says nothing
                return True
        return not is_same or not 0 <= age_s < LISTING_EVERY_S

    @contextmanager
    def begun(self) -> Iterator[Listing]:
        """Hold a listing. Until it is noted the next one is due."""
        with translated("write", str(self._path), changes=True):
            file = self._made_anew()
        with file:
            yield Listing(self._path, file)

    def forget(self) -> None:
        """Make the next listing due; this takes no room on a full disk."""
        with translated("delete", str(self._path), changes=True), suppress(FileNotFoundError):
            self._path.unlink()

    def _made_anew(self) -> FileIO:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            self.forget()
            with suppress(FileExistsError):  # another listing has just begun: the later one counts
                return FileIO(self._path, "xb")
