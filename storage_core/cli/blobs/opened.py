"""The blob server that the settings name, for the length of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockgate.storage_core.blobs import Blobs


@contextmanager
def opened_blobs() -> Iterator[Blobs]:
    """Hold it open: another process over HTTP, or this one."""
    from lockgate.storage_core.blobs import open_blobs  # noqa: PLC0415 - slow to import
    from lockgate.storage_core.settings import load_settings  # noqa: PLC0415

    with open_blobs(load_settings()) as blobs:
        yield blobs
