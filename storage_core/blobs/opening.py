"""The blob server that the settings name: another process over HTTP, or this one."""

from __future__ import annotations

from pathlib import Path

from storage_core.blobs.ha import HaBlobs
from storage_core.blobs.local import LocalBlobs
from storage_core.blobs.server import BlobServer
from storage_core.clock import Clock
from storage_core.errors import InvalidInputError
from storage_core.journal.configured import configured_journal
from storage_core.settings import Settings
from storage_core.stores import open_store


def open_blobs(settings: Settings, *, clock: Clock | None = None) -> BlobServer:
    """Open the blob server of this process; close it after use.

    Args:
        settings: `blob_dir`, `blob_store_url` and the journal's count.
        clock: Takes the place of the machine's, and of the journal's, for tests.

    Raises:
        InvalidInputError: There is no journal: it knows what keeps a blob.
    """
    journal = configured_journal(settings, clock)
    if journal is None:
        raise InvalidInputError(
            "blobs need a journal, and LOCKGATE_JOURNAL_URL is none: it knows what keeps a blob; unset it "
            "for SQLite below LOCKGATE_HOME, or name a PostgreSQL"
        )
    return BlobServer(
        LocalBlobs(blob_dir(settings)),
        ha_blobs(settings),
        journal,
        retention_s=settings.retention_interval_s,
        clock=clock,
    )


def ha_blobs(settings: Settings) -> HaBlobs | None:
    """Return the HA store of the settings, None if they name none."""
    if settings.blob_store_url is None:
        return None
    return HaBlobs(
        open_store(settings.blob_store_url, settings),
        part_bytes=settings.part_bytes,
        parallelism=settings.parallelism,
    )


def blob_dir(settings: Settings) -> Path:
    """Return the directory of the local store."""
    return settings.blob_dir or settings.home_dir / "blobs"
