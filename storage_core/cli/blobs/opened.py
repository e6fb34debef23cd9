"""Open the configured blob server for a command."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockgate.storage_core.blobs.blob_protocol import Blobs


def opened_blobs() -> AbstractContextManager[Blobs]:
    """Open the blob server: another process over HTTP, or this process."""
    from lockgate.storage_core.blobs.open_blobs import open_blobs
    from lockgate.storage_core.settings import load_settings

    return open_blobs(load_settings())
