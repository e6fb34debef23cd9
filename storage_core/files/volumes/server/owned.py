"""The volumes that a server owns: each belongs to one journal, whose blocks it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lockgate.storage_core.errors import ConflictError, InvalidInputError
from lockgate.storage_core.files.volumes.disk import Disk
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.stores.os_errors import translated

JOURNAL: Final = "journal.id"
"""File with the identity of the volume's journal. Another journal numbers its blocks alike."""


@contextmanager
def owned_volumes(folders: Sequence[Path], journal: str) -> Iterator[Mapping[VolumeId, LocalVolume]]:
    """Own volumes until the block ends, creating those that do not exist.

    Args:
        folders: Their directories.
        journal: Identity of the journal.

    Raises:
        ConflictError: Another process owns one of them, or it is of another journal.
        InvalidInputError: A directory is a file, is named twice, or has the same volume as another.
    """
    owned: dict[VolumeId, LocalVolume] = {}
    seen: list[Path] = []
    with ExitStack() as stack:
        for folder in folders:
            with translated("open", str(folder), changes=False):
                _check_new(folder, seen)
                seen.append(folder)
                volume = stack.enter_context(LocalVolume(folder))
                _claim(folder, journal)
            if volume.id in owned:
                raise InvalidInputError(
                    f"{folder} is a copy of another volume, {volume.id}; nothing was started; name one of "
                    "them, or empty the copy"
                )
            owned[volume.id] = volume
        yield owned


def _check_new(folder: Path, seen: Sequence[Path]) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(
            f"{folder} is a file; nothing was started; name the directory of a volume, or a new one"
        )
    if any(folder.resolve() == other.resolve() for other in seen):
        raise InvalidInputError(f"{folder} is named twice; nothing was started; name it once")


def _claim(folder: Path, journal: str) -> None:
    path = folder / JOURNAL
    if not path.exists():
        Disk().store(path, journal.encode())
    if (found := path.read_text()) != journal:
        raise ConflictError(
            f"the volume {folder} has blocks of the journal {found}, and LOCKGATE_JOURNAL_URL names the "
            f"journal {journal}; nothing was started; name another directory"
        )
