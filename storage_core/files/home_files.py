"""The appendable files of the journal and the volumes that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.namespace.volume_urls import read_places
from lockgate.storage_core.files.volumes.volume_map import VolumeMap, open_volume
from lockgate.storage_core.journal.observers.process_reader import configured_reads
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings, load_settings


@contextmanager
def open_journal_files(
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    reads: Client | None = None,
    files: Callable[..., Files] = Files,
) -> Iterator[Files]:
    """Open the files of the settings' journal, on the volumes that it names by URL and that below `home`.

    Listings, readers and reports read at the observers that the settings name.

    Args:
        settings: Uses `journal_url`, `home`, the limits of leases, `files_replicas`, what `configured_reads`
            uses and what begins with `s3_`; from the environment by default.
        clock: Replaces the journal's clock, for tests.
        reads: Client of the settings' journal that is open already; it stays open.
        files: Makes the files, as `Files` does.

    Raises:
        InvalidInputError: The settings disable the journal, or variables of the environment are invalid.
        JournalUnavailableError: The journal cannot be reached.
    """
    settings = settings or load_settings()
    journal = configured_journal(settings, clock)
    if journal is None:
        raise InvalidInputError("appendable files are kept in a journal; set LOCKGATE_JOURNAL_URL to one")

    opened = None
    if reads is None and settings.observer_urls:
        reads = opened = configured_reads(settings, clock=clock)
    volumes = VolumeMap(
        settings.home_dir / "volume",
        partial(read_places, journal),
        lambda url, volume: open_volume(url, settings, volume),
        journal=journal.identity,
        replicas=settings.files_replicas,
        clock=journal.clock,
    )
    made = files(journal, volumes, settings, reads=reads, members=volumes.members)
    try:
        yield made
    finally:
        made.close()
        volumes.close()
        if opened is not None:
            opened.close()
