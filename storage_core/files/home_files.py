"""The appendable files of the journal and the volumes that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.volumes.home import HomeVolumes
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings


@contextmanager
def open_files(settings: Settings, *, writes: bool, clock: Clock | None = None) -> Iterator[Files]:
    """Open the files of the settings' journal, on the volumes below `home`.

    Args:
        settings: Uses `journal_url`, `home` and the limits of leases.
        writes: Whether this process may own volumes; a reader never keeps another process from its volume.
        clock: Replaces the journal's clock, for tests.

    Raises:
        InvalidInputError: The settings disable the journal.
        JournalUnavailableError: The journal cannot be reached.
    """
    journal = configured_journal(settings, clock)
    if journal is None:
        raise InvalidInputError("appendable files are kept in a journal; set LOCKGATE_JOURNAL_URL to one")
    volumes = HomeVolumes(settings.home_dir / "volumes", owns=writes)
    files = Files(journal, volumes, settings, members=volumes.own)
    try:
        yield files
    finally:
        files.close()
        volumes.close()
