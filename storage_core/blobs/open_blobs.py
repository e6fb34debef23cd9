"""Open the blob server that the settings name, in this process or over HTTP, and end a job there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from lockgate.storage_core.blobs.http.client import BLOB_SERVER, BlobClient
from lockgate.storage_core.blobs.registry.blob_rows import BlobJob
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.clock import Clock, SystemClock
from lockgate.storage_core.errors import InvalidInputError, LockgateError
from lockgate.storage_core.failpoints import step
from lockgate.storage_core.http.connection import Connection
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import open_store

LOG: Final = logging.getLogger("lockgate.blobs")


def open_blobs(settings: Settings, *, clock: Clock | None = None) -> BlobServer | BlobClient:
    """Open a client if `blob_server_url` is set, otherwise the server of this process. Close it after use.

    Raises:
        InvalidInputError: The settings are incomplete or wrong.
    """
    if settings.blob_server_url is None:
        return open_server(settings, clock=clock)
    return open_client(settings, clock=clock)


def open_server(settings: Settings, *, clock: Clock | None = None) -> BlobServer:
    """Open the blob server of this process; close it after use.

    Args:
        settings: `blob_dir`, `blob_store_url`, `retention_interval_s` and the journal's settings are used.
        clock: Clock of the server and of the journal, for tests.

    Raises:
        InvalidInputError: The settings name no journal.
    """
    journal = configured_journal(settings, clock)
    if journal is None:
        raise InvalidInputError(
            "blobs need a journal, and LOCKGATE_JOURNAL_URL is none: the journal records what keeps a blob; "
            "unset it for SQLite below LOCKGATE_HOME, or name a PostgreSQL"
        )
    return BlobServer(
        LocalBlobs(blob_dir(settings)),
        ha_blobs(settings),
        journal,
        retention_s=settings.retention_interval_s,
        clock=clock,
    )


def open_client(settings: Settings, *, clock: Clock | None = None) -> BlobClient:
    """Open a client of a blob server; close it after use. It sends no request yet.

    Args:
        settings: `blob_server_url`, `blob_token_file`, `blob_ca_file` and `blob_timeout_s` are used.
        clock: Clock for tests.

    Raises:
        InvalidInputError: There is no URL, or a file that the settings name cannot be read.
    """
    if settings.blob_server_url is None:
        raise InvalidInputError("LOCKGATE_BLOB_SERVER_URL names no blob server; set it to one")
    connection = Connection(
        settings.blob_server_url,
        peer=BLOB_SERVER,
        token_file=settings.blob_token_file,
        ca_file=settings.blob_ca_file,
        timeout_s=settings.blob_timeout_s,
        clock=clock or SystemClock(),
    )
    return BlobClient(connection, clock=clock)


def ha_blobs(settings: Settings) -> HaBlobs | None:
    """Return the HA store of the settings, None if they name none."""
    if settings.blob_store_url is None:
        return None
    return HaBlobs(
        open_store(settings.blob_store_url, settings),
        part_bytes=settings.part_bytes,
        parallelism=settings.near_calls,
    )


def blob_dir(settings: Settings) -> Path:
    """Return the directory of the local store."""
    return settings.blob_dir or settings.home_dir / "blobs"


def delete_ended(job_id: str, settings: Settings, *, clock: Clock | None = None) -> bool:
    """Delete the blobs of a job if the journal says that it has ended; return whether they are gone.

    A failure is only logged: the next sweep deletes them.

    Args:
        job_id: Id of the job in the blob stores.
        settings: Settings that name the journal and the blob server.
        clock: Clock for tests.
    """
    try:
        with step("blob-finish"):
            return _delete_ended(job_id, settings, clock)
    except LockgateError as error:
        LOG.warning("%s; the next sweep deletes them", error)
        return False


def _delete_ended(job_id: str, settings: Settings, clock: Clock | None) -> bool:
    journal = configured_journal(settings, clock)
    if journal is None:
        return False
    with journal.reading() as reading:
        job = reading.get(BlobJob, job_id)
    if job is None or job.final_s is None:
        return False
    with open_blobs(settings, clock=clock) as blobs:
        blobs.finish(job_id)
    return True
